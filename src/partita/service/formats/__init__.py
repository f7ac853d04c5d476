"""What the three services share on the wire: addresses, errors, XML, multipart; pure."""
