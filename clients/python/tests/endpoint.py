"""Serves the handler of the tests by WSGI, and prints the port."""

import os
import socketserver
import wsgiref.simple_server

from worker import handle


class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, format, *args):
        pass


application = handle.wsgi(os.environ["ENDPOINT_TOKEN"])
server = wsgiref.simple_server.make_server("127.0.0.1", 0, application, Server, Quiet)
print(f"port {server.server_port}", flush=True)
server.serve_forever()
