# Runs a worker of Ruby's Lowkiq below a node, its perform(payloads_by_id) unchanged. Ruby 2.3 or later.
#
#     queues:
#       orders:
#         handler: {exec: [bundle, exec, ruby, worker.rb, ./app.rb, OrdersWorker], processes: 5, events: [buried]}
#
# ./app.rb is what `lowkiq -r ./app.rb` loaded: it defines OrdersWorker. If it loads the gem, the gem's server_middlewares,
# on_server_init, load_payload and format_error do what they did. events is for retries_exhausted, which gets what went to the morgue.
#
# Payloads that Ruby dumped arrive as bytes and are loaded, with every object in them, also if a dump_payload made them JSON;
# whoever can push, write to Redis, or reach an endpoint can have Ruby run what they like so. What others push in JSON arrives as JSON:
# keys are strings.
#
# An endpoint over HTTP answers a node's POST with LowkiqWorker.answer(OrdersWorker, body).
require 'json'

module LowkiqWorker
  # What to answer a node's line, a batch or an event.
  def self.answer(worker, line)
    message = JSON.parse(line, max_nesting: false)
    if message['event']
      jobs = message['event']['jobs'] # a recovery has none
      worker.retries_exhausted(jobs.map { |job| exhausted(job) }) if jobs
    else
      batch = message['jobs'].map { |job| [id(job), payloads(job).map(&:first)] }.to_h
      wrapper.call(worker, batch) { worker.perform(batch) }
    end
    JSON.generate(ok: true)
  rescue StandardError => e
    JSON.generate(ok: false, error: format_error(e).to_s.encode('UTF-8', invalid: :replace, undef: :replace))
  end

  # As the gem hands it to retries_exhausted.
  def self.exhausted(job)
    { id: id(job), payloads: payloads(job), error: job['error'] }
  end

  def self.id(job)
    job['id'] || bytes(job['id_base64'])
  end

  # Payloads with their scores, lowest score first.
  def self.payloads(job)
    job['payloads'].map do |p|
      data = p['payload']
      [data.is_a?(Hash) && data.keys == ['$base64'] ? load(bytes(data['$base64'])) : data, p['score'].to_f]
    end
  end

  # Marked as text, as the gem's Redis client gives them.
  def self.bytes(base64)
    base64.unpack('m')[0].force_encoding(Encoding.default_external)
  end

  def self.load(bytes)
    defined?(Lowkiq.load_payload) ? Lowkiq.load_payload.call(bytes) : Marshal.load(bytes)
  end

  def self.wrapper
    defined?(Lowkiq.server_wrapper) ? Lowkiq.server_wrapper : ->(_worker, _batch, &block) { block.call }
  end

  def self.format_error(error)
    defined?(Lowkiq.format_error) ? Lowkiq.format_error.call(error) : error.message
  end

  # Answers lines of stdin until it ends. What the app and the worker print is in the node's log. Text is UTF-8 whatever the
  # locale says: services and containers often have none, and then Ruby takes it for ASCII.
  def self.run(*files, name)
    Encoding.default_external = Encoding::UTF_8
    answers = $stdout.dup
    $stdout.reopen($stderr)
    $stdin.set_encoding('UTF-8')
    files.each { |file| require File.expand_path(file) }
    worker = Object.const_get(name)
    Lowkiq.on_server_init.call if defined?(Lowkiq.on_server_init)
    $stdin.each_line do |line|
      answers.puts answer(worker, line)
      answers.flush
    end
  end
end

LowkiqWorker.run(*ARGV) if __FILE__ == $PROGRAM_NAME
