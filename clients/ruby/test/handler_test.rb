# frozen_string_literal: true

# Tests of handlers without a node.
require 'minitest/autorun'
require 'open3'
require 'stringio'
require 'lowkiq/client'

BATCH = {
  queue: 'orders', shard: 3, fence: 7, flight: 9, jobs: [
    { id: 'a', retry_count: 1, callers: 2, state: { count: 41 },
      payloads: [{ score: 1, payload: { n: 1 }, header: { tag: 'vip' } }, { score: 2, payload: { '$base64': '/w==' } }] },
    { id_base64: '/w==', retry_count: -1, payloads: [{ score: 1, payload: '' }] }
  ]
}.freeze

class HandlerTest < Minitest::Test
  def answer(message = BATCH, &block)
    @notes = []
    JSON.parse(Lowkiq.handler(&block).answer(JSON.generate(message), ->(_, note) { @notes << note }))
  end

  def test_job
    jobs = []
    assert_equal({ 'ok' => true, 'flight' => 9 }, answer { |job| jobs << job })
    a, other = jobs
    assert_equal ['a', 3, 2, { 'count' => 41 }, 'orders', 3, 7], [a.id, a.attempt, a.callers, a.state, a.queue, a.shard, a.fence]
    assert_equal [[{ 'n' => 1 }, 1, { 'tag' => 'vip' }], ["\xFF".b, 2, {}]], a.payloads.map(&:to_a)
    assert_equal ["\xFF".b, 1, 0, nil], [other.id, other.attempt, other.callers, other.state]
  end

  def test_results_and_states
    got = answer do |job|
      job.result = { n: 1 }
      job.state = job.id == 'a' ? nil : "\xFF".b
    end
    want = { 'answers' => { 'a' => { 'result' => { 'n' => 1 }, 'state' => nil } },
             'answers_base64' => { '/w==' => { 'result' => { 'n' => 1 }, 'state' => { '$base64' => '/w==' } } },
             'ok' => true, 'flight' => 9 }
    assert_equal want, got
  end

  def test_follow_ups
    got = answer do |job|
      next unless job.id == 'a'

      job.follow_up('mail', 'u7', { n: 1 }, perform_at: 1_763_600_000, header: { tag: 'vip' })
      job.follow_up('mail', "\xFF".b)
    end
    pushes = [{ 'queue' => 'mail', 'id' => 'u7', 'payload' => { 'n' => 1 }, 'perform_in' => 1_763_600_000, 'header' => { 'tag' => 'vip' } },
              { 'queue' => 'mail', 'id_base64' => '/w==', 'payload' => '' }]
    assert_equal({ 'answers' => { 'a' => { 'then' => pushes } }, 'ok' => true, 'flight' => 9 }, got)
  end

  def test_one_fails
    got = nil
    _, logged = capture_io do
      got = answer do |job|
        raise Lowkiq::Bury, '' unless job.id == 'a'

        job.result = 'does not count'
        raise KeyError, "x\xFF"
      end
    end
    want = { 'failed' => { 'a' => "KeyError: x\uFFFD" }, 'bury_base64' => { '/w==' => 'no reason was given' }, 'flight' => 9 }
    assert_equal want, got
    assert_includes logged, 'KeyError'
  end

  def test_postponed
    assert_equal({ 'ok' => false, 'retry_after' => 1, 'error' => 'the shop is away' },
                 answer { raise Lowkiq::Postpone.new(0.2, 'the shop is away') })
    assert_equal({ 'ok' => false, 'retry_after' => 30, 'limit' => 'acme:' }, answer { raise Lowkiq::Throttle.new(30, 'acme:') })
    assert_equal({ 'ok' => false, 'retry_after' => 86_400 }, answer { raise Lowkiq::Postpone.new(Float::INFINITY) })
    assert_equal({ 'ok' => false, 'retry_after' => 7 }, answer { raise Lowkiq::Postpone.new(7) })
  end

  def test_wrong_ends_are_failures
    [-> { raise Lowkiq::Postpone.new(nil) }, -> { raise Lowkiq::Postpone.new(Float::NAN) }, -> { require 'no such file' },
     -> { raise SystemStackError }].each do |block|
      capture_io { assert answer { block.call }['failed']['a'] }
    end
  end

  def test_notes
    answer do |job|
      next unless job.id == 'a'

      job.note(progress: 0.5, log: 'half', state: { row: 1 })
      job.note(log: 'more')
    end
    assert_equal [{ progress: 0.5, log: 'half', state: { 'row' => 1 } }, { log: 'more' }], @notes
  end

  def test_an_ended_job_takes_no_notes
    program = <<~'RUBY'
      require 'lowkiq/client'
      go = Queue.new
      thread = nil
      Lowkiq.handler do |job|
        if thread
          go << true
          job.result = thread.value
        else
          thread = Thread.new do
            go.pop
            job.note(progress: 0.5)
          rescue RuntimeError => e
            e.message
          end
        end
      end.run
    RUBY
    batch = JSON.generate(BATCH.merge(jobs: BATCH[:jobs].first(1)))
    command = [RbConfig.ruby, '-I', File.expand_path('../lib', __dir__), '-e', program]
    out, status = Open3.capture2(*command, stdin_data: "#{batch}\n" * 2)
    assert status.success?
    told = { 'a' => { 'result' => 'the job has ended, and takes no notes' } }
    assert_equal [{ 'ok' => true, 'flight' => 9 }, { 'answers' => told, 'ok' => true, 'flight' => 9 }],
                 out.lines.map { |line| JSON.parse(line) }
  end

  def test_values_must_be_json
    [Object.new, Float::INFINITY, { '$base64' => 'x' }, ["\xFF"]].each do |value|
      capture_io { assert answer { |job| job.result = value }['failed']['a'] }
    end
  end

  def test_events
    event = { 'kind' => 'recovered', 'queue' => 'orders', 'shard' => 3, 'recovered' => 12, 'crashes' => 0, 'from' => 'n2/1' }
    assert_equal({ 'ok' => true }, answer({ event: event }) { flunk })
    got = []
    handler = Lowkiq.handler { flunk }.on_event { |e| got << e }
    assert_equal '{"ok":true}', handler.answer(JSON.generate(event: event), nil)
    assert_equal [event], got
  end

  def test_it_can_be_called
    assert_equal 2, Lowkiq.handler { |job| job + 1 }.call(1)
    assert_raises(ArgumentError) { Lowkiq.handler }
  end

  def ask(authorization = 'Bearer secret', body = JSON.generate(BATCH), **env)
    app = Lowkiq.handler { nil }.rack('secret', max_bytes: 1000)
    app.call({ 'REQUEST_METHOD' => 'POST', 'HTTP_AUTHORIZATION' => authorization, 'CONTENT_LENGTH' => body.bytesize.to_s,
               'rack.input' => StringIO.new(body) }.merge(env.transform_keys(&:to_s)))
  end

  def test_rack
    status, headers, body = ask
    assert_equal [200, '{"ok":true,"flight":9}', '22'], [status, body.join, headers['content-length']]
    assert_equal 200, ask('Basic bG93a2lxOnNlY3JldA==').first # lowkiq:secret
    [nil, '', 'Bearer', 'Bearer secre', 'Bearer secrets', 'Basic bG93a2lx', 'Basic !', 'Digest secret',
     "Bearer s\xE9cret"].each { |wrong| assert_equal 401, ask(wrong).first, wrong }
    assert_equal 405, ask(REQUEST_METHOD: 'GET').first
    assert_equal 411, ask(CONTENT_LENGTH: nil).first
    assert_equal 413, ask(CONTENT_LENGTH: '1001').first
    ['{', '[]', '1', '{"jobs":[{}]}', "\xFF"].each { |wrong| assert_equal 400, ask('Bearer secret', wrong).first, wrong }
    assert_raises(ArgumentError) { Lowkiq.handler { nil }.rack('') }
  end
end
