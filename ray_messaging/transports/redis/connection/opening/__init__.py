"""How a connection to a server is made: where it is, TLS, and the socket that becomes ours."""
