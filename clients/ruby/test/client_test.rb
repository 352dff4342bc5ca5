# frozen_string_literal: true

# Tests of the client against a real node, which clients_test.go starts: go test ./clients -run Ruby.
require 'minitest/autorun'
require 'socket'
require 'lowkiq/client'

class ClientTest < Minitest::Test
  CONTROL = ENV['LOWKIQ_TEST_CONTROL']
  QUEUES = %w[orders posted].freeze

  def setup
    skip 'SKIPPED: there is no node; go test ./clients starts it' unless CONTROL
    @client = Lowkiq::Client.new
  end

  def teardown
    @client&.close
  end

  # Asks clients_test.go to do something to the node.
  def control(what)
    answer = Net::HTTP.post(URI("#{CONTROL}/#{what}"), '')
    assert_equal '200', answer.code
  end

  def eventually(what)
    deadline = now + 60
    until yield
      assert_operator now, :<, deadline, what
      sleep 0.02
    end
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def append(id, number)
    { id: id, payload: { do: 'append', n: number } }
  end

  def call(queue, id, what, **options)
    @client.call(queue, id, { do: what }, **options)
  end

  # Returns the first occurrence of each number that the handler has got, in order.
  def numbers(id)
    reply = call('orders', id, 'state')
    assert_equal 'done', reply.state, reply.error
    reply.result.uniq
  end

  # A port at which nothing answers. Without a backlog nothing is accepted either.
  def silent
    server = Socket.new(:INET, :STREAM)
    server.bind(Addrinfo.tcp('127.0.0.1', 0))
    yield server, "http://127.0.0.1:#{server.local_address.ip_port}"
  ensure
    server&.close
  end

  # The README shows this.
  def test_page
    jobs = [{ id: 'order-2' }]
    later = []
    capture_io do
      client = Lowkiq::Client.new
      client.push('orders', 'order-1', { state: 'paid' }, header: { tag: 'vip' })
      client.push_many('orders', (0...1000).map { |n| { id: 'order-1', payload: { n: n } } })
      reply = client.call('orders', 'order-1', { state: 'sent' }, wait: 30)
      puts "#{reply.state} #{reply.result} #{reply.error}"
      assert_equal ['done', { 'state' => 'sent' }], [reply.state, reply.result]
      client = Lowkiq::Client.new
      reply = client.call('visits', 'page-1', 'home', wait: 30)
      reply = client.reply('visits', reply.id, reply.token) if reply.state == 'pending'
      puts "#{reply.state} #{reply.result} #{reply.error}"
      assert_equal ['done', 1], [reply.state, reply.result]
      client = Lowkiq::Client.new
      files = [
        { queue: 'orders', id: 'a', payload: 1, name: 'first' },
        { queue: 'orders', id: 'b', payload: 2, after: ['first'] }
      ]
      client.start_workflow('import-42', files, done: { queue: 'orders', id: '42' }, deadline: 7200, open: true)
      client.add_to_workflow('import-42', [{ queue: 'orders', id: 'c', payload: 3 }])
      client.close_workflow('import-42')
      puts client.workflow('import-42')['state']
      eventually('the workflow is done') { client.workflow('import-42')['state'] == 'done' }
      assert_equal 3, client.workflow('import-42')['done']
      client = Lowkiq::Client.new(url: 'http://127.0.0.1:9', patience: 0)
      begin
        client.push_many('orders', jobs)
      rescue Lowkiq::Error => e
        puts "#{e.message} #{e.status}"
        later.concat(e.jobs) if e.safe_to_repeat?
      end
    end
    assert_equal jobs, later
  end

  def test_workflow
    id = 'wörk/1'
    later = { queue: 'orders', perform_at: Time.now + 3600 }
    jobs = [later.merge(id: 'w1', payload: "\x00".b)]
    done = { queue: 'orders', id: 'end', header: { tag: 'vip' } }
    2.times do # the same start again is no error
      assert_equal 1, @client.start_workflow(id, jobs, done: done, dead: done, deadline: 60, open: true)['total']
    end
    error = assert_raises(Lowkiq::Error) { @client.start_workflow(id, jobs) }
    assert_includes error.message, 'another workflow has this id'
    assert_equal [409, false], [error.status, error.safe_to_repeat?]
    2.times do
      @client.add_to_workflow(id, [later.merge(id: 'w2')])
      control('lose')
      refute @client.close_workflow(id)['open']
    end
    error = assert_raises(Lowkiq::Error) { @client.add_to_workflow(id, [later.merge(id: 'w3')]) }
    assert_includes error.message, 'not open'
    eventually('it has both jobs') { @client.workflow(id)['total'] == 2 }
    assert_equal id, @client.cancel_workflow(id)['id']
    eventually('it is cancelled') { @client.workflow(id)['state'] == 'cancelled' }
    assert_equal 404, assert_raises(Lowkiq::Error) { @client.workflow('none') }.status
    error = assert_raises(ArgumentError) { @client.start_workflow('none', [later.merge(id: 'a', befor: [])]) }
    assert_includes error.message, 'its keys must be'
  end

  def test_push_merges
    options = { perform_at: Time.now + 3600 }
    one = @client.push('orders', 'merged', { n: 1, text: 'Zoë' }, **options)
    two = @client.push('orders', 'merged', { 'n' => 1, 'text' => 'Zoë' }, **options)
    assert_equal [true, false, true], [one['ok'], one['merged'], two['merged']]
    why = @client.why('orders', 'merged')
    assert_equal 'scheduled', why['state']
    assert_includes why['reason'], 'due in'
  end

  def test_push_carries_all
    @client.push('orders', 'urgent', 1, perform_at: Time.now + 3600, urgent: true)
    assert_includes @client.why('orders', 'urgent')['reason'], 'urgent'
    reply = call('orders', 'called', 'describe', score: 2.5, header: { tag: 'vip' }, urgent: true)
    want = { 'id' => 'called', 'attempt' => 1, 'callers' => 1, 'queue' => 'orders', 'score' => 2.5,
             'header' => { 'tag' => 'vip' }, 'state' => nil }
    assert_equal want, reply.result
  end

  def test_thousand_in_order
    results = @client.push_many('orders', (0...1000).map { |n| append('bulk', n) })
    assert_equal(1000, results.count { |result| result['ok'] && result['id'] == 'bulk' })
    assert_equal (0...1000).to_a, numbers('bulk')
  end

  def test_more_than_a_part
    jobs = (0...2500).map { |n| append("part-#{n % 7}", n) }
    assert_equal 2500, @client.push_many('orders', jobs.each).size
    assert_equal 3.step(2499, 7).to_a, numbers('part-3')
    long = (0...30).map { |n| { id: 'long', payload: n.to_s * 100_000, perform_at: Time.now + 3600 } }
    assert_equal 30, @client.push_many('orders', long).size
    assert_equal [], @client.push_many('orders', [])
  end

  def test_restarts_between_pushes
    starts = []
    20.times do |n|
      if n % 10 == 5
        control('stop')
        starts << Thread.new { control('start') }
      end
      @client.push('orders', 'restarted', { do: 'append', n: n })
    end
    starts.each(&:join)
    assert_equal (0...20).to_a, numbers('restarted')
  end

  def test_lost_answers_are_repeated
    10.times do |n|
      control('lose')
      @client.push_many('orders', (0...10).map { |k| append('lost', 10 * n + k) })
    end
    assert_equal (0...100).to_a, numbers('lost')
  end

  def test_lost_call_is_not_repeated
    control('lose')
    error = assert_raises(Lowkiq::Error) { @client.call('orders', 'lost call', { do: 'append', n: 1 }) }
    assert_nil error.status
    refute error.safe_to_repeat?
    eventually('the call runs') { call('orders', 'lost call', 'state').result == [1] }
  end

  def test_call_is_repeated_while_nothing_listens
    silent do |_, closed|
      both = Lowkiq::Client.new(url: "#{closed},#{ENV.fetch('LOWKIQ_URL')}")
      assert_equal 'done', both.call('orders', 'both', 1).state
      error = assert_raises(Lowkiq::Error) { Lowkiq::Client.new(url: closed, patience: 0).push('orders', 'x', 1) }
      assert_equal [nil, true, [{ id: 'x', payload: 1 }]], [error.status, error.safe_to_repeat?, error.jobs]
      assert_match(/#{closed}.*not stored: 1 of 1/, error.message)
    end
  end

  def test_wrong_token
    error = assert_raises(Lowkiq::Error) { Lowkiq::Client.new(token: 'wrong').push('orders', 'x', 1) }
    assert_equal [401, false], [error.status, error.safe_to_repeat?]
    assert_match(/ASCII/, assert_raises(ArgumentError) { Lowkiq::Client.new(token: "two\nlines") }.message)
  end

  def test_wrong_queue
    [-> { @client.push('wrok', 'x', 1) }, -> { @client.call('wrok', 'x', 1) }, -> { @client.why('wrok', 'x') },
     -> { @client.history('wrok', 'x') }].each do |ask|
      error = assert_raises(Lowkiq::Error, &ask)
      assert_includes error.message, 'unknown queue "wrok"'
      assert_equal [404, false], [error.status, error.safe_to_repeat?]
    end
  end

  def test_timeout
    silent do |server, url|
      server.listen(8)
      error = assert_raises(Lowkiq::Error) { Lowkiq::Client.new(url: url, timeout: 0.2, patience: 0).push('orders', 'x', 1) }
      assert error.safe_to_repeat?
      short = Lowkiq::Client.new(url: url, timeout: 0.2)
      error = assert_raises(Lowkiq::Error) { short.call('orders', 'x', 1, wait: 0.1) }
      refute error.safe_to_repeat?
    end
  end

  # Answers pushes as a node does. The block gets the id of each before its answer.
  def answer_pushes(socket)
    while (head = socket.gets("\r\n\r\n"))
      id = JSON.parse(socket.read(head[/^content-length: (\d+)/i, 1].to_i))['id']
      yield id
      text = JSON.generate(results: [{ id: id, ok: true }])
      socket.write("HTTP/1.1 200 OK\r\nContent-Length: #{text.bytesize}\r\n\r\n#{text}")
    end
  rescue SystemCallError
    nil
  ensure
    socket.close
  end

  def test_answer_of_an_ended_request_is_not_that_of_the_next
    server = TCPServer.new('127.0.0.1', 0)
    got = Queue.new
    late = Queue.new
    threads = Array.new(2) do
      Thread.new do
        answer_pushes(server.accept) do |id|
          next unless id == 'first'

          got << id
          late.pop
        end
      end
    end
    client = Lowkiq::Client.new(url: "http://127.0.0.1:#{server.addr[1]}")
    pushes = Thread.new do # the connection is that of this thread
      assert_raises(Timeout::Error) { Timeout.timeout(0.3) { client.push('orders', 'first', 1) } }
      late << true
      client.push('orders', 'second', 2)['id']
    end
    assert_equal 'second', pushes.value
    refute got.empty?
  ensure
    threads&.each(&:kill)
    server&.close
  end

  def test_a_fiber_has_a_connection_of_its_own
    server = TCPServer.new('127.0.0.1', 0)
    got = Queue.new
    threads = Array.new(2) { |n| Thread.new { answer_pushes(server.accept) { |id| got << [id, n] } } }
    client = Lowkiq::Client.new(url: "http://127.0.0.1:#{server.addr[1]}")
    Fiber.new { client.push('orders', 'a', 1) }.resume
    client.push('orders', 'b', 2)
    a, b = Array.new(2) { got.pop }
    assert_equal %w[a b], [a.first, b.first]
    refute_equal a.last, b.last
  ensure
    threads&.each(&:kill)
    server&.close
  end

  def test_answer_that_is_cut_off
    server = TCPServer.new('127.0.0.1', 0)
    thread = Thread.new do
      socket = server.accept
      socket.read(socket.gets("\r\n\r\n")[/^content-length: (\d+)/i, 1].to_i)
      socket.write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"results\":")
      socket.close
      answer_pushes(server.accept) { nil }
    end
    client = Lowkiq::Client.new(url: "http://127.0.0.1:#{server.addr[1]}")
    assert_equal 'x', client.push('orders', 'x', 1)['id']
  ensure
    client&.close
    thread&.kill
    server&.close
  end

  def test_dripping_answer
    server = TCPServer.new('127.0.0.1', 0)
    thread = Thread.new do
      socket = server.accept
      socket.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
      loop { socket.write(' ') && sleep(0.02) }
    rescue SystemCallError
      socket.close
    end
    client = Lowkiq::Client.new(url: "http://127.0.0.1:#{server.addr[1]}", timeout: 0.3, patience: 0)
    assert_match(/deadline|Timeout|expired/, assert_raises(Lowkiq::Error) { client.why('orders', 'x') }.message)
    thread.join
    server.close
  end

  def test_refused_jobs
    jobs = [{ id: 'a', payload: 1 }, { id: 'b', payload: 'x' * (1 << 20) }, { id: 'c', payload: 3 }]
    error = assert_raises(Lowkiq::Error) { @client.push_many('orders', jobs) }
    assert_equal [[jobs[1]], false], [error.jobs, error.safe_to_repeat?]
    assert_includes error.reasons.first, 'payload is too large'
  end

  def test_what_is_no_job_is_not_sent
    { 'must be a String' => { payload: 1 }, 'its keys must be' => { id: 'a', body: 1 },
      'NaN is not JSON' => { id: 'a', payload: Float::NAN }, 'which is not JSON' => { id: 'a', payload: Object.new },
      'stands for bytes' => { id: 'a', payload: { '$base64' => 'eA==' } }, 'is not UTF-8' => { id: 'a', payload: ["\xFF"] },
      'must be a String or' => { id: 'a', payload: { 1 => 2 } } }.each do |why, job|
      error = assert_raises(ArgumentError) { @client.push_many('orders', [{ id: 'unsent', payload: 1 }, job]) }
      assert_includes error.message, why
    end
    assert_equal 'absent', @client.why('orders', 'unsent')['state']
  end

  def test_payloads_come_as_they_were
    payloads = ["\x00\xFF".b, "Zoë \u2028 \u{1F600} \"\\\n", [1, 2.5, nil, true, { 'k' => [] }], {}, '', nil, 0,
                'x' * 200_000]
    QUEUES.product(payloads).each do |queue, payload|
      reply = @client.call(queue, 'same', payload)
      assert_equal 'done', reply.state, reply.error
      payload.nil? ? assert_nil(reply.result) : assert_equal(payload, reply.result)
    end
    assert_equal '', @client.call('orders', 'same', ''.b).result
    assert_equal 'Zoë', @client.call('orders', 'same', 'Zoë'.encode('ISO-8859-1')).result
  end

  def test_ids
    QUEUES.product(['Zoë/1 ?#%', '.', '..', "\xFF", "\xFF".b, "\u2028", 'ascii'.b]).each do |queue, id|
      reply = call(queue, id, 'note')
      assert_equal [id.b, 'done', 1], [reply.id.b, reply.state, reply.result]
      assert_equal 1, @client.reply(queue, id, reply.token).result
      assert_equal 'done', @client.history(queue, id).first['verdict']
      assert_equal 'absent', @client.why(queue, id)['state']
    end
  end

  def test_ends
    QUEUES.each do |queue|
      [['print', 'done', 'printed', ''], ['raise', 'buried', nil, 'ArgumentError: told to fail, Zoë'],
       ['bury', 'buried', nil, 'no such account'], ['postpone', 'done', nil, ''], ['throttle', 'done', nil, ''],
       ['bytes', 'done', "\x00\xFF".b, '']].each do |what, *want|
        reply = call(queue, "acme:#{what}", what)
        assert_equal want, [reply.state, reply.result, reply.error], "#{queue}: #{what}"
      end
      reply = call(queue, 'acme:object', 'object')
      assert_equal 'buried', reply.state
      assert_includes reply.error, 'not JSON'
      assert_equal "\xFE".b, call(queue, 'acme:bytes', 'state').result
      call(queue, 'acme:bytes', 'forget')
      assert_nil call(queue, 'acme:bytes', 'state').result
    end
  end

  # A batch of many ids: the answer is about each of them.
  def test_batches
    @client.push_many('batches', (0...50).map { |n| { id: "b#{n}", payload: { do: (n % 5).zero? ? 'raise' : 'append', n: n } } })
    50.times do |n|
      want = (n % 5).zero? ? 'morgue' : 'absent'
      eventually("b#{n} is #{want}") { @client.why('batches', "b#{n}")['state'] == want }
    end
    assert_equal [7], call('batches', 'b7', 'state').result
  end

  def test_pending
    reply = @client.call('orders', 'pending', 1, wait: 0.05, keep: 60, perform_at: Time.now.to_f + 3600)
    assert_equal ['pending', nil], [reply.state, reply.result]
    assert_equal 'pending', @client.reply('orders', 'pending', reply.token).state
    assert_equal 404, assert_raises(Lowkiq::Error) { @client.reply('orders', 'pending', 'A' * 22) }.status
    assert_includes assert_raises(Lowkiq::Error) { @client.call('orders', 'pending', 1, wait: 301) }.message, 'wait'
  end

  def test_tls
    url = ENV.fetch('LOWKIQ_TEST_TLS_URL')
    secure = Lowkiq::Client.new(url: url, ca: ENV.fetch('LOWKIQ_TEST_CA'))
    assert secure.push('orders', 'tls', 1)['ok']
    assert_equal 'done', secure.call('orders', 'tls', 1).state
    refute assert_raises(Lowkiq::Error) { Lowkiq::Client.new(url: url).push('orders', 'tls', 1) }.safe_to_repeat?
  end

  def test_threads_and_forks_share_a_client
    @client.push('orders', 'shared', { do: 'append', n: 0 })
    (1..8).map { |n| Thread.new { @client.push('orders', 'shared', { do: 'append', n: n }) } }.each(&:join)
    child = fork do
      @client.push('orders', 'shared', { do: 'append', n: 9 })
    ensure
      exit!
    end
    Process.wait(child)
    @client.push('orders', 'shared', { do: 'append', n: 10 })
    assert_equal (0..10).to_a, numbers('shared').sort
  end
end
