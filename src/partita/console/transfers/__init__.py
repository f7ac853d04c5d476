"""Bytes between the browser and the console: uploads, files of jobs, tickets of downloads."""
