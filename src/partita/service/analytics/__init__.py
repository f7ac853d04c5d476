"""Storage Analytics: the log in `$logs` and the metrics in the tables `$Metrics…`.

`Recorder` writes them for the services whose properties ask for it.
"""
