"""`partita state`: inspect, verify, back up, restore and export the folder of a reliable state."""
