# Makes reports. A node starts this program.
require 'lowkiq/client'

handler = Lowkiq.handler do |job|
  job.payloads.each do |payload|
    kind = payload.data['kind']
    raise Lowkiq::Bury, "there are no reports of the kind #{kind}" if kind != 'sales'

    puts "making #{payload.data}"
    job.result = { report: job.id, attempt: job.attempt }
  end
end

handler.run if $PROGRAM_NAME == __FILE__
