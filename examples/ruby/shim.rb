# Sends what producers of Ruby's Lowkiq push to a node of lowkiq instead: same ids, payloads, scores and due times.
# Ruby 2.3 or later. After the gem, before the first push, as the last client middleware:
#
#     require_relative 'shim'
#     LowkiqShim.install(queues: { 'OrdersWorker' => 'orders' }, payload: :marshal)
#
# queues has the new queue of each queue_name of Ruby's, which is the worker's name unless it is set. Other workers push as
# before. payload is that of `lowkiq-migrate`: :marshal keeps what Lowkiq.dump_payload makes, :json takes plain data only.
#
# LOWKIQ_URL is the address of a node, or of several with commas between. LOWKIQ_TOKEN, or the file LOWKIQ_TOKEN_FILE, has its
# token; LOWKIQ_CA, LOWKIQ_CERT and LOWKIQ_KEY are files for https. While no node answers, a push is repeated for 10 seconds
# (patience: 10), and what comes after it waits; then it raises.
require 'json'
require 'net/http'
require 'openssl'
require 'uri'

class LowkiqShim
  # A push of which not all is stored. jobs are those that are not, or of which nobody knows, in order: push them again.
  class Error < StandardError
    attr_reader :jobs

    def initialize(why, jobs)
      super("lowkiq: #{why}; not stored: #{jobs.size} of the jobs (see jobs)")
      @jobs = jobs
    end
  end

  class Away < StandardError; end # a node that says it may take it later

  MOST_JOBS = 1000
  MOST_BYTES = 1 << 20
  AWAY = [Away, SystemCallError, SocketError, IOError, Net::OpenTimeout, Net::ReadTimeout, Net::ProtocolError, Net::HTTPBadResponse,
          OpenSSL::SSL::SSLError, *(Net::WriteTimeout if Net.const_defined?(:WriteTimeout))].freeze

  # Gems older than 1.2.2 have no client middlewares: there perform_async is replaced.
  def self.install(options)
    shim = new(options)
    if !Lowkiq.respond_to?(:client_middlewares)
      Lowkiq::Worker.send(:remove_method, :perform_async)
      Lowkiq::Worker.send(:define_method, :perform_async) { |batch| shim.call(self, batch) { client_queue.push batch } }
    elsif Lowkiq.instance_variable_get(:@client_wrapper)
      raise 'LowkiqShim: something was pushed before, and since then the gem takes no middleware: install the shim earlier'
    else
      Lowkiq.client_middlewares << shim
    end
  end

  def initialize(options)
    @queues = options.fetch(:queues)
    @marshal = { marshal: true, json: false }.fetch(options.fetch(:payload))
    @nodes = ENV.fetch('LOWKIQ_URL').split(',').map { |url| URI(url.strip.chomp('/')) }
    @patience = options.fetch(:patience, 10)
    @ca = ENV['LOWKIQ_CA']
    @cert = ENV['LOWKIQ_CERT'] && OpenSSL::X509::Certificate.new(File.read(ENV['LOWKIQ_CERT']))
    @key = ENV['LOWKIQ_KEY'] && OpenSSL::PKey.read(File.read(ENV['LOWKIQ_KEY']))
    token # a file that is not there is found now
    @kept = "lowkiq_shim_#{object_id}" # each thread's connection
  end

  # As the gem calls a client middleware. The block pushes to the old queue.
  def call(worker, batch)
    queue = @queues[worker.queue_name]
    return yield unless queue
    jobs = batch.map { |job| [job, line(job)] } # all can be sent, or nothing is
    until jobs.empty?
      part = first_of(jobs)
      rest = jobs.drop(part.size)
      part = patiently(part + rest) { post(queue, part, rest) } until part.empty? # nothing overtakes it
      jobs = rest
    end
  end

  private

  # A job in JSON. What dump_payload made goes as bytes, and comes to the handler as bytes.
  def line(job)
    raise ArgumentError, "lowkiq: a retry_count cannot be pushed: #{job}" if job.key?(:retry_count)
    id = job.fetch(:id).to_s.b.force_encoding('UTF-8')
    raise ArgumentError, "lowkiq: a job without an id: #{job}" if id.empty?
    wire = id.valid_encoding? ? { id: id } : { id_base64: [id].pack('m0') }
    payload = job.fetch(:payload, '')
    if @marshal
      wire[:payload] = { '$base64' => [Lowkiq.dump_payload.call(payload)].pack('m0') }
    else
      check(payload, id, 0)
      bytes = payload.is_a?(Hash) && payload.keys.map(&:to_s) == ['$base64'] # would stand for bytes
      raise ArgumentError, "lowkiq: the payload of #{id} has one key, $base64, which says that bytes follow" if bytes
      wire[:payload] = payload
    end
    [:score, :perform_in].each { |key| wire[key] = Float(job[key]) if job.key?(key) } # if not: the node's time
    JSON.generate(wire, max_nesting: 101)
  end

  # JSON.generate makes text of any object without a word: only plain data may get there.
  def check(value, id, depth)
    plain =
      case value
      when nil, true, false, Integer then true
      when Float then value.finite?
      when Symbol, String then text?(value)
      when Array then value.instance_of?(Array) && depth < 100
      when Hash then value.instance_of?(Hash) && depth < 100 && keys?(value.keys)
      end
    raise ArgumentError, "lowkiq: JSON cannot say what the payload of #{id} has, #{value.class} #{value.inspect[0, 80]}" unless plain
    value.each { |v| check(v, id, depth + 1) } if value.is_a?(Array)
    value.each_value { |v| check(v, id, depth + 1) } if value.is_a?(Hash)
  end

  def text?(value)
    return text?(value.to_s) if value.is_a?(Symbol)
    value.instance_of?(String) && (value.ascii_only? || value.encoding == Encoding::UTF_8 && value.valid_encoding?)
  end

  def keys?(keys)
    keys.map(&:to_s).uniq.size == keys.size && keys.all? do |key|
      case key
      when nil, true, false, Integer then true
      when Symbol, String then text?(key)
      end
    end
  end

  def first_of(jobs)
    size = 0
    part = jobs.take(MOST_JOBS).take_while { |_, line| (size += line.bytesize) <= MOST_BYTES }
    part.empty? ? jobs.take(1) : part
  end

  # Repeats the block while no node answers.
  def patiently(jobs)
    pause = 0.05
    begin
      yield
    rescue *AWAY => e
      disconnect
      limit ||= now + @patience
      raise Error.new("no node has taken it: #{e.message} (#{e.class})", jobs.map(&:first)) if now >= limit
      sleep(pause = [2 * pause, 1].min)
      retry
    end
  end

  # Pushes part, and returns what of it is to be pushed again. rest comes after it.
  def post(queue, part, rest)
    answer = request(queue, part.map(&:last).join("\n"))
    results = answer.code == '200' && results_of(answer, part.size)
    unless results
      why = "the node answers #{answer.code}: #{detail(answer)}"
      raise Away, why if %w[408 429 502 503 504].include?(answer.code)
      raise Error.new(why, (part + rest).map(&:first))
    end
    failed = part.zip(results).reject { |_, result| result['ok'] }
    left = failed.map(&:first)
    refused = failed.find { |_, result| !result['retry'] }
    raise Error.new(refused[1]['error'], (left + rest).map(&:first)) if refused
    raise Away, failed[0][1]['error'] if left.size == part.size
    left
  end

  def results_of(answer, size)
    results = JSON.parse(answer.body)['results']
    results if results.is_a?(Array) && results.size == size
  rescue JSON::ParserError, TypeError
    nil
  end

  def detail(answer)
    JSON.parse(answer.body).fetch('detail')
  rescue StandardError
    answer.body.to_s[0, 200]
  end

  def request(queue, body)
    node, http = connection
    post = Net::HTTP::Post.new("#{node.path}/api/v1/queues/#{queue}/jobs", 'Content-Type' => 'application/x-ndjson')
    post['Authorization'] = "Bearer #{token}" if token
    http.request(post, body)
  end

  def token
    file = ENV['LOWKIQ_TOKEN_FILE']
    ENV['LOWKIQ_TOKEN'] || (file && File.read(file)[/\S+/])
  end

  # The thread's connection. One that a process had before it forked is not this one's.
  def connection
    pid, *kept = Thread.current[@kept]
    return kept if pid == Process.pid
    node = @nodes.first
    http = Net::HTTP.new(node.host, node.port)
    http.open_timeout = http.read_timeout = 10
    http.use_ssl = node.scheme == 'https'
    http.ca_file, http.cert, http.key = @ca, @cert, @key
    Thread.current[@kept] = [Process.pid, node, http.start]
    [node, http]
  end

  def disconnect
    pid, _, http = Thread.current[@kept]
    Thread.current[@kept] = nil
    @nodes = @nodes.rotate
    http.finish if pid == Process.pid && http.started?
  rescue IOError
    nil # it is closed already
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
