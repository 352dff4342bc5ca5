# Orders a report and waits for it.
require 'lowkiq/client'

client = Lowkiq::Client.new
reply = client.call('reports', 'acme', { kind: 'sales' }, wait: 30)
puts "#{reply.state} #{JSON.generate(reply.result)}"
reply = client.call('reports', 'globex', { kind: 'rumours' }, wait: 30)
puts "#{reply.state} #{reply.error}"
client.history('reports', 'acme').each { |run| puts "#{run['verdict']} attempt #{run['attempt']}" }
puts client.why('reports', 'globex')['reason']
