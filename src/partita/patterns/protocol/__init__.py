"""What the core asks of the outside, and what a row is: pure values."""
