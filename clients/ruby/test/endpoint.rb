# frozen_string_literal: true

# Serves the handler of the tests as a Rack application, and prints the port. It stands in for a Rack server: a thread for
# each connection, and a request on each connection.
require 'socket'
require 'stringio'
require_relative 'worker'

app = HANDLE.rack(ENV.fetch('ENDPOINT_TOKEN'))
server = TCPServer.new('127.0.0.1', 0)
puts "port #{server.addr[1]}"
$stdout.flush

def environment(socket)
  method, = socket.gets&.split
  return unless method

  headers = {}
  while (line = socket.gets.chomp) != ''
    name, value = line.split(': ', 2)
    headers[name.upcase.tr('-', '_')] = value
  end
  { 'REQUEST_METHOD' => method, 'CONTENT_LENGTH' => headers['CONTENT_LENGTH'], 'HTTP_AUTHORIZATION' => headers['AUTHORIZATION'],
    'rack.input' => StringIO.new(socket.read(headers['CONTENT_LENGTH'].to_i)) }
end

loop do
  Thread.new(server.accept) do |socket|
    if (env = environment(socket))
      status, headers, body = app.call(env)
      lines = ["HTTP/1.1 #{status} ", 'connection: close', *headers.map { |pair| pair.join(': ') }, '', body.join]
      socket.write(lines.join("\r\n"))
    end
    socket.close
  end
end
