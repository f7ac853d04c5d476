"""Pictures of heat: keys by time, drawn in a terminal, as SVG or as PNG."""
