# A handler that runs a worker of Ruby's Lowkiq, its perform(payloads_by_id) unchanged. Ruby 2.3 or later.
#
#     queues:
#       orders:
#         handler: {exec: [bundle, exec, ruby, -r, ./app.rb, worker.rb, OrdersWorker], events: [exhausted]}
#
# ./app.rb is what `lowkiq -r ./app.rb` loaded: it defines OrdersWorker. If it loads the gem, the gem's
# server_middlewares, load_payload and format_error do what they did. events is for retries_exhausted.
#
# Payloads that Ruby dumped arrive as bytes and are loaded, with every object in them; as ever, whoever can
# write to Redis can have Ruby run what they like so. Payloads in JSON arrive as JSON: keys are strings.
require 'json'

worker = Object.const_get(ARGV.fetch(0))
load_payload = defined?(Lowkiq.load_payload) ? Lowkiq.load_payload : Marshal.method(:load)
wrapper = defined?(Lowkiq.server_wrapper) ? Lowkiq.server_wrapper : ->(_worker, _batch, &block) { block.call }
format_error = defined?(Lowkiq.format_error) ? Lowkiq.format_error : :message.to_proc
answers = $stdout.dup
$stdout.reopen($stderr) # what the worker prints is in the node's log
$stdin.set_encoding('UTF-8')

$stdin.each_line do |line|
  begin
    message = JSON.parse(line, max_nesting: false)
    batch = (message['event'] || message)['jobs'].map do |job|
      payloads = job['payloads'].map { |p| p['payload'] }
      [job['id'] || job['id_base64'].unpack('m')[0],
       payloads.map { |p| p.is_a?(Hash) && p.keys == ['$base64'] ? load_payload.call(p['$base64'].unpack('m')[0]) : p }]
    end.to_h
    if message['event'] then worker.retries_exhausted(batch)
    else wrapper.call(worker, batch) { worker.perform(batch) }
    end
    answer = { ok: true }
  rescue StandardError => e
    answer = { ok: false, error: format_error.call(e).to_s.encode('UTF-8', invalid: :replace, undef: :replace) }
  end
  answers.puts JSON.generate(answer)
  answers.flush
end
