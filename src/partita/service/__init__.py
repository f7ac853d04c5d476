"""The wire: the Azure Table, Queue and Blob protocols over HTTP, or in one process.

http        bytes → Request, Response → bytes
formats     addresses, errors, XML, multipart                  pure
auth        who sends a request, and what they may do          pure
accounts    `Front.respond`: the path of every request
tables      decode → Call → perform → answer; the same shape in queues and blobs
hosting     sockets, ASGI, clients in this process
backup      backups of whole accounts

A request: hosting.server → http.protocol → accounts.respond → auth → tables.service → the engine.
"""
