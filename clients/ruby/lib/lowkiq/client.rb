# frozen_string_literal: true

# Pushes jobs to lowkiq and handles them. Ruby 2.7 or later, standard library only.
#
# A Lowkiq::Client pushes jobs to a node over HTTP, waits for their results and asks what became of them. Lowkiq.handler makes
# a handler of a block, for a child process of a node or for a Rack server.
require 'json'
require 'net/http'
require 'openssl'
require 'uri'

module Lowkiq
  # A request that a node refused or did not answer.
  class Error < StandardError
    # The status of the answer, nil without an answer.
    attr_reader :status
    # Of a push: the jobs that are not stored, or may not be, in order; and why, for each of them.
    attr_reader :jobs, :reasons
    attr_reader :retry_after # :nodoc:

    def initialize(message, status: nil, safe_to_repeat: false, retry_after: 0, jobs: [], reasons: [])
      super(message)
      @status = status
      @safe_to_repeat = safe_to_repeat
      @retry_after = retry_after
      @jobs = jobs
      @reasons = reasons
    end

    # Whether the same request may succeed later, and does no harm if it comes twice.
    def safe_to_repeat?
      @safe_to_repeat
    end
  end

  # How a call has ended: state is done, pending, buried, deleted or expired; error is why the job was buried; with the token
  # Client#reply asks again.
  Reply = Struct.new(:id, :state, :result, :error, :token, keyword_init: true)

  # Payloads and ids as JSON. Bytes are Strings that are not text: of the encoding ASCII-8BIT, or not valid in their own.
  module Wire # :nodoc:
    module_function

    def bytes?(text)
      text.encoding == Encoding::ASCII_8BIT && !text.ascii_only? || !text.valid_encoding?
    end

    # A String of the encoding ASCII-8BIT is always bytes, even if it could be text.
    def encode(value)
      if value.is_a?(String) && (value.encoding == Encoding::ASCII_8BIT || !value.valid_encoding?)
        return value.empty? ? '' : { '$base64' => [value].pack('m0') }
      end
      raise ArgumentError, 'a Hash with the only key $base64 stands for bytes; give bytes instead' if stands_for_bytes?(value)

      check(value)
      value
    end

    # The JSON value of a push.
    def push(job)
      unknown = job.keys - %i[id payload score perform_at header urgent]
      if unknown.any?
        raise ArgumentError, "a job has the key #{unknown.first}; its keys must be id, payload, score, perform_at, header, urgent"
      end

      line = write_id(job[:id])
      line[:payload] = encode(job.fetch(:payload, ''.b))
      line[:score] = job[:score] if job[:score]
      at = job[:perform_at]
      line[:perform_in] = at.is_a?(Numeric) ? at : at.to_f if at
      line[:header] = job[:header] if job[:header]
      line[:urgent] = true if job[:urgent]
      check(line)
      line
    end

    # The JSON value of a job of a workflow.
    def workflow_job(job)
      own, pushed = job.partition { |key, _| %i[queue name after].include?(key) }.map(&:to_h)
      check(own)
      push(pushed).merge(own.compact)
    end

    def decode(value)
      stands_for_bytes?(value) ? value['$base64'].unpack1('m') : value
    end

    def stands_for_bytes?(value)
      value.is_a?(Hash) && value.keys.map(&:to_s) == ['$base64']
    end

    # JSON.generate makes text of any object without a word, and a node refuses text that is not UTF-8.
    def check(value)
      case value
      when nil, true, false, Integer then nil
      when Float then raise ArgumentError, "#{value} is not JSON" unless value.finite?
      when String, Symbol then raise ArgumentError, "#{value.inspect[0, 80]} is not UTF-8" if bytes?(value.to_s)
      when Array then value.each { |item| check(item) }
      when Hash
        value.each do |key, item|
          unless key.is_a?(String) || key.is_a?(Symbol)
            raise ArgumentError, "the key #{key.inspect[0, 80]} must be a String or a Symbol"
          end

          check(key)
          check(item)
        end
      else raise ArgumentError, "#{value.inspect[0, 80]} is a #{value.class}, which is not JSON"
      end
    end

    def generate(value)
      JSON.generate(value, max_nesting: 0).encode(Encoding::UTF_8)
    end

    def write_id(id)
      raise ArgumentError, "the id is #{id.inspect[0, 80]}; it must be a String" unless id.is_a?(String)
      return { id: id } unless bytes?(id)

      text = id.dup.force_encoding(Encoding::UTF_8)
      text.valid_encoding? ? { id: text } : { id_base64: [id].pack('m0') }
    end

    def read_id(value)
      value['id'] || value['id_base64'].unpack1('m')
    end

    def path(queue, *segments)
      ['/api/v1/queues', segment(queue), *segments].join('/')
    end

    # Escapes a segment of a path. Servers would resolve dots.
    def segment(text)
      return text.gsub('.', '%2E') if ['.', '..'].include?(text)

      text.b.gsub(/[^A-Za-z0-9_.-]/n) { |byte| format('%%%02X', byte.ord) }
    end
  end

  # Sends requests to a node. Threads, fibers and forked processes may share it; each has a connection of its own.
  class Client
    VERSION = '0.1.0'

    # A part of a bulk has at most so many jobs and bytes. A node stores a shard's share of it in a single step, so that the
    # jobs that were not stored can be repeated without a change of order.
    PART_JOBS = 1000
    PART_BYTES = 1 << 20
    ANSWER_BYTES = 64 << 20 # the longest answer of a node that is read
    AWAY = [SystemCallError, SocketError, IOError, Timeout::Error, Net::ProtocolError, Net::HTTPBadResponse,
            OpenSSL::SSL::SSLError].freeze
    private_constant :PART_JOBS, :PART_BYTES, :ANSWER_BYTES, :AWAY

    # url is the address of a node, or of several with commas between. By default these variables count, as for the commands
    # of lowkiq-node: LOWKIQ_URL, LOWKIQ_TOKEN or the file LOWKIQ_TOKEN_FILE, and the files LOWKIQ_CA, LOWKIQ_CERT and
    # LOWKIQ_KEY for https. timeout bounds a request. patience bounds the time for which a request is repeated while no node
    # answers. Both are seconds.
    def initialize(url: nil, token: nil, ca: nil, cert: nil, key: nil, timeout: 10, patience: 30)
      url ||= ENV.fetch('LOWKIQ_URL', 'http://127.0.0.1:7948')
      @nodes = url.split(',').map { |one| parse_url(one.strip) }
      @turn = 0 # index of the node that answered last
      @token = token || ENV['LOWKIQ_TOKEN']
      @token_file = ENV['LOWKIQ_TOKEN_FILE'] unless @token
      unless timeout.positive? && patience >= 0
        raise ArgumentError, "timeout is #{timeout} and patience #{patience}; they must be more than 0, and at least 0"
      end

      @timeout = timeout
      @patience = patience
      @ca = ca || ENV['LOWKIQ_CA']
      cert ||= ENV['LOWKIQ_CERT']
      key ||= ENV['LOWKIQ_KEY']
      @cert = OpenSSL::X509::Certificate.new(File.read(cert)) if cert
      @key = OpenSSL::PKey.read(File.read(key)) if key
      @kept = :"lowkiq_client_#{object_id}" # each fiber's connection
      read_token # a bad token or file is an error now
    end

    # Pushes a job. Returns when Redis has it: {"id" => …, "ok" => true, "merged" => false}.
    #
    # payload is JSON, or bytes: a String of the encoding ASCII-8BIT. merged means that an equal payload was already waiting.
    # While no node answers, the push is repeated. A payload whose answer was lost may therefore come to its handler twice.
    # perform_at is a Time, or unix seconds. urgent puts the id before all ids of its shard that are not urgent.
    def push(queue, id, payload, **options)
      push_many(queue, [{ id: id, payload: payload, **options }]).first
    end

    # Pushes jobs in order: hashes with the arguments of push. Returns the answers in the same order.
    #
    # Nothing is sent unless all jobs can be sent. A refused job does not stop the others. The Error at the end has the jobs
    # that are not stored.
    def push_many(queue, jobs)
      jobs = jobs.to_a
      lines = jobs.map { |job| line(job) }
      path = Wire.path(queue, 'jobs')
      results = Array.new(jobs.size)
      parts(lines).each do |part|
        push_part(path, lines, part, results)
      rescue Error => e
        raise unstored(e, jobs, results)
      end
      refused = results.find { |result| !result['ok'] }
      raise unstored(Error.new(refused['error'], status: 200), jobs, results) if refused

      results
    end

    # Pushes a job and waits for its end, for at most wait seconds (0.001 to 300). The Reply may still be pending then.
    #
    # Two calls are two runs. So a call is repeated only if no node can have stored it.
    def call(queue, id, payload, wait: 60, keep: nil, **options)
      query = { wait: "#{(wait * 1000).round}ms" }
      query[:keep] = "#{(keep * 1000).round}ms" if keep
      path = "#{Wire.path(queue, 'jobs')}?#{URI.encode_www_form(query)}"
      body = line({ id: id, payload: payload, **options })
      results = patiently { ask('POST', path, body, once: true, longer: wait) }['results']
      unless results.is_a?(Array) && results.size == 1
        raise Error.new("#{path}: not the answer of a lowkiq node to a call", status: 200)
      end

      answer = results.first
      raise Error.new(answer['error'], status: 200) unless answer['ok']

      answer['result_kept'] ? reply(queue, id, answer['token']) : read_reply(answer, answer['token'])
    end

    # Asks again for the Reply of a call.
    def reply(queue, id, token)
      path = Wire.path(queue, 'replies', Wire.segment(id), Wire.segment(token))
      read_reply(patiently { ask('GET', path) }, token)
    end

    # Returns the runs of an id that the queue's journal has, the last run first, as the API gives them.
    def history(queue, id, limit: 100)
      path = "#{Wire.path(queue, 'jobs', Wire.segment(id), 'history')}?#{URI.encode_www_form(limit: limit)}"
      patiently { ask('GET', path) }['runs']
    end

    # Returns where an id is ("state"), and in a sentence why no handler has it ("reason").
    def why(queue, id)
      path = "/api/v1/why?queue=#{Wire.segment(queue)}&id=#{Wire.segment(id)}"
      patiently { ask('GET', path) }
    end

    # Starts a workflow, all of it or nothing. Returns its status: {"id" => …, "state" => "stored", "total" => 3, …}.
    #
    # jobs are hashes with a queue and the arguments of push except urgent. They may have a name, and after with names of jobs
    # that must be done before. done is pushed once when all jobs are done, and dead when they cannot go on or after deadline
    # seconds. open means that jobs may be added until close_workflow. The same start again does nothing. Another workflow
    # under the id is an Error with status 409.
    def start_workflow(id, jobs = [], done: nil, dead: nil, deadline: nil, open: false)
      body = { jobs: jobs.map { |job| Wire.workflow_job(job) }, open: open }
      body[:done] = Wire.workflow_job(done) if done
      body[:dead] = Wire.workflow_job(dead) if dead
      body[:deadline] = "#{(deadline * 1000).round}ms" if deadline
      ask_workflow('PUT', id, '', Wire.generate(body))
    end

    # Adds jobs to an open workflow, all or none. The same jobs again do nothing. Returns its status.
    def add_to_workflow(id, jobs)
      ask_workflow('POST', id, '/jobs', Wire.generate({ jobs: jobs.map { |job| Wire.workflow_job(job) } }))
    end

    # Says that no more jobs will be added to a workflow. Returns its status.
    def close_workflow(id)
      ask_workflow('POST', id, '/close', '')
    end

    # Returns the status of a workflow: its "state", and numbers of its jobs.
    def workflow(id)
      ask_workflow('GET', id)
    end

    # Ends a workflow without a push. Its jobs are left alone, and those that wait for others are dropped.
    def cancel_workflow(id)
      ask_workflow('DELETE', id)
    end

    # Closes the connection of this fiber.
    def close
      pid, _, http = Thread.current[@kept]
      Thread.current[@kept] = nil
      http.finish if pid == Process.pid && http.started?
    rescue IOError
      nil # it is closed already
    end

    # Sends a note of an endpoint about a job.
    def note(job, note) # :nodoc:
      headers = { 'Content-Type' => 'application/json', 'Lowkiq-Fence' => job.fence.to_s, 'Lowkiq-Flight' => job.flight.to_s }
      ask('POST', Wire.path(job.queue, 'jobs', Wire.segment(job.id), 'note'), Wire.generate(note), headers: headers)
    end

    private

    # Pushes a part until all of it is stored or refused. The next part must not overtake it.
    def push_part(path, lines, left, results)
      patience = Patience.new(@patience)
      until left.empty?
        begin
          answers = ask('POST', path, left.map { |i| lines[i] }.join("\n"))['results']
          unless answers.is_a?(Array) && answers.size == left.size
            raise Error.new("#{path}: not the answer of a lowkiq node to #{left.size} jobs", status: 200)
          end

          again, settled = left.zip(answers).partition { |_, answer| !answer['ok'] && answer['retry'] }
          settled.each { |i, answer| results[i] = answer }
          patience = Patience.new(@patience) unless settled.empty?
          left = again.map(&:first)
          raise Error.new(again.first.last['error'], status: 200, safe_to_repeat: true) unless again.empty?
        rescue Error => e
          patience.after(e)
        end
      end
    end

    def ask_workflow(method, id, rest = '', body = nil)
      patiently { ask(method, "/api/v1/workflows/#{Wire.segment(id)}#{rest}", body) }
    end

    def patiently
      patience = Patience.new(@patience)
      begin
        yield
      rescue Error => e
        patience.after(e)
        retry
      end
    end

    # Sends a request and returns the answer. once means that it does harm if it comes twice.
    def ask(method, path, body = nil, once: false, longer: 0, headers: {})
      deadline = now + @timeout + longer
      all = { 'Content-Type' => 'application/x-ndjson', 'Accept-Encoding' => 'identity' }.merge(headers)
      token = read_token
      all['Authorization'] = "Bearer #{token}" if token
      close if once # on a new connection it is certain whether the request was sent
      sent = done = false
      begin
        node, http = connection
        http.read_timeout = @timeout + longer
        request = Net::HTTPGenericRequest.new(method, !body.nil?, true, node.path.chomp('/') + path, all)
        sent = true
        text = +''
        answer = http.request(request, body) { |response| read_body(response, text, deadline) }
        done = true
      rescue *AWAY => e
        close
        where = @nodes[@turn % @nodes.size].to_s.chomp('/')
        @turn += 1
        safe = !(once && sent) && !untrusted?(e)
        raise Error.new("#{method} #{where}#{path}: #{e.message} (#{e.class})", safe_to_repeat: safe)
      ensure
        close unless done # Timeout.timeout may end a request, and the next one must not get its answer
      end
      read_answer(method, path, answer, text, once)
    end

    def read_answer(method, path, answer, text, once)
      status = answer.code.to_i
      value = begin
        JSON.parse(text.force_encoding(Encoding::UTF_8), max_nesting: false)
      rescue JSON::ParserError
        nil
      end
      return value if value.is_a?(Hash) && (200..299).cover?(status)

      problem = value.is_a?(Hash) && value['detail'].is_a?(String)
      detail = problem ? value['detail'] : "#{method} #{path}: #{status}, which is not the answer of a lowkiq node"
      # A node answers so if it has stored nothing. Others that answer so may stand before a node that has.
      passing = if problem then [429, 503]
                elsif once then []
                else [408, 429, 502, 503, 504]
                end
      raise Error.new(detail, status: status, safe_to_repeat: passing.include?(status), retry_after: answer['Retry-After'].to_i)
    end

    def read_body(response, text, deadline)
      response.read_body do |chunk|
        raise Net::ReadTimeout, 'the deadline is over' if now > deadline

        text << chunk
        raise IOError, "the answer is longer than #{ANSWER_BYTES} bytes" if text.bytesize > ANSWER_BYTES
      end
      length = response.content_length # net/http takes a shorter body
      raise EOFError, "the answer ended after #{text.bytesize} of #{length} bytes" if length && text.bytesize < length
    end

    def connection
      pid, *kept = Thread.current[@kept]
      return kept if pid == Process.pid && kept.last.started?

      node = @nodes[@turn % @nodes.size]
      http = Net::HTTP.new(node.hostname, node.port, nil)
      http.open_timeout = http.read_timeout = http.write_timeout = @timeout
      http.max_retries = 0 # net/http would repeat some requests by itself
      http.keep_alive_timeout = 30
      http.use_ssl = node.scheme == 'https'
      http.ca_file = @ca
      http.cert = @cert
      http.key = @key
      http.start
      Thread.current[@kept] = [Process.pid, node, http]
      [node, http]
    end

    def untrusted?(error)
      error.is_a?(OpenSSL::SSL::SSLError) && error.message.include?('certificate verify failed')
    end

    def line(job)
      Wire.generate(Wire.push(job))
    end

    def parts(lines)
      size = 0
      lines.each_index.slice_when do |i, following|
        size += lines[i].bytesize
        full = (following % PART_JOBS).zero? || size + lines[following].bytesize > PART_BYTES
        size = 0 if full
        full
      end
    end

    # Returns an error that has the jobs that are not stored.
    def unstored(error, jobs, results)
      left = jobs.each_index.reject { |i| results[i] && results[i]['ok'] }
      Error.new("#{error.message}; not stored: #{left.size} of #{jobs.size} jobs (see jobs)", status: error.status,
                safe_to_repeat: error.safe_to_repeat?, jobs: jobs.values_at(*left),
                reasons: left.map { |i| results[i] ? results[i]['error'] : error.message })
    end

    def read_reply(answer, token)
      Reply.new(id: Wire.read_id(answer), state: answer['state'], result: Wire.decode(answer['result']),
                error: answer['error'].to_s, token: token)
    end

    def parse_url(text)
      node = begin
        URI(text.include?('://') ? text : "http://#{text}")
      rescue URI::InvalidURIError
        nil
      end
      return node if node.is_a?(URI::HTTP) && node.host && !node.userinfo && !node.query && !node.fragment

      raise ArgumentError, "url is #{text.inspect}; it must be http://host:port or https://host:port"
    end

    def read_token
      token = @token_file ? File.read(@token_file).strip : @token
      return token if token.nil? || token.match?(/\A[!-~]+\z/)

      raise ArgumentError, 'the token must be ASCII without spaces and line breaks'
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # Bounds the time for which a request is repeated.
    class Patience # :nodoc:
      def initialize(limit)
        @end = now + limit
        @pause = 0.05
      end

      # Sleeps before the next attempt, or raises the error.
      def after(error)
        pause = [@pause, [error.retry_after, 5].min].max
        raise error if !error.safe_to_repeat? || now + pause > @end

        sleep(pause)
        @pause = [2 * @pause, 1].min
      end

      private

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
    private_constant :Patience
  end

  # Raised by a handler: the job can never succeed, and goes to the morgue with this reason.
  class Bury < StandardError; end

  # Raised by a handler: not now. The whole batch comes again after so many seconds, without a retry.
  class Postpone < StandardError
    attr_reader :seconds

    def initialize(seconds, reason = '')
      super(reason)
      @seconds = Float(seconds)
      raise ArgumentError, 'the seconds are not a number' if @seconds.nan?
    end
  end

  # A Postpone that also keeps other ids of the group from handlers, such as "acme:". "" stands for those of the batch.
  class Throttle < Postpone
    attr_reader :group

    def initialize(seconds, group = '')
      super(seconds)
      @group = group
    end
  end

  # A payload of a job: data is JSON, or bytes.
  Payload = Struct.new(:data, :score, :header, keyword_init: true)

  # An id with its waiting payloads, lowest score first.
  #
  # attempt is 1 for the first attempt. callers is the number of callers who wait for the result. fence only grows for a
  # shard; a lower fence belongs to an owner that has lost the shard.
  class Job
    attr_reader :id, :payloads, :attempt, :callers, :queue, :shard, :fence, :flight
    attr_reader :answer # :nodoc:
    attr_accessor :noted # :nodoc:

    # What the last job of the id has kept: JSON, or bytes. Assign it to change it: Redis has the new state once the job is
    # done. nil deletes it.
    attr_reader :state

    def initialize(batch, job, note) # :nodoc:
      @id = Wire.read_id(job)
      @payloads = job['payloads'].map do |item|
        Payload.new(data: Wire.decode(item['payload']), score: item['score'], header: item.fetch('header', {}))
      end
      @attempt = job['retry_count'] + 2
      @callers = job.fetch('callers', 0)
      @queue, @shard, @fence, @flight = batch.values_at('queue', 'shard', 'fence', 'flight')
      @state = Wire.decode(job['state'])
      @answer = {}
      @note = note
    end

    def state=(value)
      @answer[:state] = copy(value)
      @state = value
    end

    # Answers the callers, with JSON or bytes.
    def result=(value)
      @answer[:result] = copy(value)
    end

    # Adds a push to any registered queue, which Redis stores with the end of the job or not at all.
    def follow_up(queue, id, payload = ''.b, score: nil, perform_at: nil, header: nil)
      push = Wire.push(id: id, payload: payload, score: score, perform_at: perform_at, header: header)
      (@answer[:then] ||= []) << JSON.parse(Wire.generate(push), max_nesting: false).merge('queue' => queue)
      nil
    end

    # Reports how far the job is, as a share from 0 to 1 and a line. With a state the next attempt continues there.
    def note(progress: nil, log: nil, state: nil)
      note = { progress: progress, log: log, state: state.nil? ? nil : copy(state) }.compact
      @state = state unless state.nil?
      @note.call(self, note)
    end

    private

    # Later changes of the value do not count.
    def copy(value)
      JSON.parse(Wire.generate(Wire.encode(value)), max_nesting: false)
    end
  end

  # A block that handles jobs, below a node or behind a Rack server.
  class Handler
    FAILURES = [StandardError, ScriptError, SystemStackError].freeze
    private_constant :FAILURES

    def initialize(&block)
      raise ArgumentError, 'a handler needs a block' unless block

      @block = block
    end

    # Takes the block that gets the events for which handler.events of the node's configuration asks.
    def on_event(&block)
      @event = block
      self
    end

    # Handles a job, for tests.
    def call(job)
      @block.call(job)
    end

    # Handles batches of the node that has started this process, until the node ends it.
    #
    # The node reads answers from stdout. So run keeps stdout to itself, and what this process and its children print goes to
    # stderr, which the node logs. Children read an empty stdin.
    def run
      warn 'lowkiq: a node starts this program, by handler: {exec: [...]}; now it reads batches from the terminal' if $stdin.tty?
      answers = IO.for_fd(1, autoclose: false).dup
      batches = IO.for_fd(0, autoclose: false).dup
      # Through other objects than $stdout, so that what waits in its buffer goes to stderr as well.
      IO.for_fd(1, autoclose: false).reopen(IO.for_fd(2, autoclose: false))
      IO.for_fd(0, autoclose: false).reopen(File::NULL)
      $stdout.sync = true
      answers.binmode.sync = true
      pid = Process.pid
      lock = Mutex.new # threads of the block may note
      ended = 0 # number of batches
      write = lambda do |line, batch = ended|
        raise 'a forked child of the handler must not answer or note' if Process.pid != pid

        lock.synchronize do
          # The node would take it for a note of the next batch.
          raise 'the job has ended, and takes no notes' if batch < ended

          answers.write("#{line}\n".b)
        end
      end
      batches.binmode.each_line("\n") do |line|
        batch = ended
        note = ->(job, value) { write.call(Wire.generate({ key('note', job) => { id_key(job.id) => value } }), batch) }
        said = answer(line, note)
        ended += 1
        write.call(said)
      end
    end

    # Returns a Rack application that handles batches which a node posts.
    #
    # A request must carry the token: as the password of the URL of handler.http, or as a bearer token. Notes go to a node by
    # client (default: Client.new). max_bytes bounds a batch.
    def rack(token, client: nil, max_bytes: 64 << 20)
      if token.to_s.empty?
        raise ArgumentError, 'the token must not be empty: whoever can post to the application can make it handle jobs'
      end

      note = notes(client)
      lambda do |env|
        unless token?(env, token)
          next refuse(401, "the request does not have this handler's token", 'www-authenticate' => 'Bearer')
        end
        next refuse(405, 'a node posts batches', 'allow' => 'POST') unless env['REQUEST_METHOD'] == 'POST'

        length = env['CONTENT_LENGTH'].to_s
        next refuse(411, 'the request must have a Content-Length') unless length.match?(/\A\d+\z/)
        next refuse(413, "the batch has #{length} bytes, at most #{max_bytes} are allowed") if length.to_i > max_bytes

        begin
          respond(200, answer(env['rack.input'].read(length.to_i).to_s, note))
        rescue JSON::ParserError, KeyError, TypeError, NoMethodError => e # of the request: those of the block are answers
          refuse(400, "not a batch of lowkiq: #{e.class}: #{e.message[0, 200]}")
        end
      end
    end

    # Returns the answer to a batch or an event.
    def answer(text, note) # :nodoc:
      message = JSON.parse(text.dup.force_encoding(Encoding::UTF_8), max_nesting: false)
      return answer_event(message['event']) if message.key?('event')

      sides = {}
      jobs = message.fetch('jobs').map { |job| Job.new(message, job, note) }
      jobs.each do |job|
        side, said = outcome(job)
        return postponed(said) if side == 'postponed' # the protocol postpones whole batches

        (sides[key(side, job)] ||= {})[id_key(job.id)] = said if side
      end
      sides['ok'] = true if sides.keys.all? { |side| side.start_with?('answers') }
      Wire.generate(sides.merge('flight' => message['flight']))
    end

    private

    def outcome(job)
      @block.call(job)
      ['answers', job.answer] unless job.answer.empty?
    rescue Postpone => e
      ['postponed', e]
    rescue Bury => e
      ['bury', reason(e)]
    rescue *FAILURES => e
      log(e)
      ['failed', "#{e.class}: #{reason(e)}"]
    end

    def answer_event(event)
      @event&.call(event)
      Wire.generate({ ok: true })
    rescue *FAILURES => e
      log(e)
      Wire.generate({ ok: false, error: "#{e.class}: #{reason(e)}" })
    end

    def log(error)
      warn error.full_message(highlight: false)
    end

    # Returns a function that sends notes of an endpoint to a node, at most one in a second for a job.
    def notes(client)
      lambda do |job, value|
        raise ArgumentError, 'a note over HTTP cannot have a state; assign job.state' if value.key?(:state)

        now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        next if job.noted && now - job.noted < 1

        job.noted = now
        client ||= Client.new
        begin
          client.note(job, value)
        rescue Error => e
          raise unless e.safe_to_repeat? # a later note may say the same; but 409 means that the job is not ours any more
        end
      end
    end

    def respond(status, text, headers = {})
      [status, { 'content-type' => 'application/json', 'content-length' => text.bytesize.to_s }.merge(headers), [text]]
    end

    def refuse(status, reason, headers = {})
      respond(status, Wire.generate({ error: utf8(reason) }), headers)
    end

    def token?(env, token)
      scheme, sent = env['HTTP_AUTHORIZATION'].to_s.b.strip.split(/ +/, 2)
      case scheme.to_s.downcase
      when 'basic' then sent = sent.to_s.unpack1('m').split(':', 2)[1]
      when 'bearer' then nil
      else return false
      end
      # Digests have the same length, and say nothing of the texts.
      left, right = [sent.to_s, token].map { |text| OpenSSL::Digest.digest('SHA256', text.b).bytes }
      left.zip(right).reduce(0) { |all, (a, b)| all | (a ^ b) }.zero?
    end

    # Keys of ids that are not UTF-8 have a name of their own.
    def key(side, job)
      Wire.bytes?(job.id) ? "#{side}_base64" : side
    end

    def id_key(id)
      Wire.bytes?(id) ? [id].pack('m0') : id
    end

    # Returns the text of an error for the node, which keeps less of it. It is never empty.
    def reason(error)
      text = utf8(error.message)[0, 4096]
      text.empty? ? 'no reason was given' : text
    end

    def utf8(text)
      text = text.to_s.dup
      text.force_encoding(Encoding::UTF_8) if text.encoding == Encoding::ASCII_8BIT
      text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace).scrub
    end

    def postponed(error)
      answer = { ok: false, retry_after: error.seconds.clamp(1, 86_400).ceil }
      if error.is_a?(Throttle)
        answer[:limit] = utf8(error.group)
      elsif error.message != error.class.name && !error.message.empty?
        answer[:error] = reason(error)
      end
      Wire.generate(answer)
    end
  end

  # Makes a handler of a block, which gets each job of a batch in turn.
  #
  # If it returns, the job is done. Bury, Postpone and Throttle say otherwise. Any other StandardError, a ScriptError
  # and a SystemStackError are the job's failure, and the job is retried.
  def self.handler(&block)
    Handler.new(&block)
  end
end
