# frozen_string_literal: true

# The handler of the tests. A payload says what to do: {"do": "echo"}.
require_relative '../lib/lowkiq/client'

postponed = {}

HANDLE = Lowkiq.handler do |job|
  job.payloads.each do |payload|
    data = payload.data
    case data.is_a?(Hash) && data['do'] || 'echo'
    when 'echo' then job.result = data
    when 'describe'
      job.result = { id: job.id, attempt: job.attempt, callers: job.callers, queue: job.queue, score: payload.score,
                     header: payload.header, state: job.state }
    when 'print'
      puts 'a stray print'
      IO.for_fd(1, autoclose: false).syswrite("a stray write\n")
      system('sh', '-c', 'echo a stray child; cat') # cat would wait for batches
      job.result = 'printed'
    when 'raise' then raise ArgumentError, 'told to fail, Zoë'
    when 'bury' then raise Lowkiq::Bury, 'no such account'
    when 'postpone' then postponed[job.id] || (postponed[job.id] = true) && raise(Lowkiq::Postpone.new(1, 'not yet'))
    when 'throttle' then postponed[job.id] || (postponed[job.id] = true) && raise(Lowkiq::Throttle.new(1, 'acme:'))
    when 'append' then job.state = (job.state || []) + [data['n']]
    when 'state' then job.result = job.state
    when 'forget' then job.state = nil
    when 'note'
      job.note(progress: 0.5, log: 'half of it')
      job.result = job.attempt
    when 'object' then job.result = Object.new
    when 'bytes'
      job.result = "\x00\xFF".b
      job.state = "\xFE".b
    end
  end
end

HANDLE.run if $PROGRAM_NAME == __FILE__
