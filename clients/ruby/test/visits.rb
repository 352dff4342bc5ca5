# frozen_string_literal: true

# Counts visits. docs/handlers.md shows this.
require_relative '../lib/lowkiq/client'

handler = Lowkiq.handler do |job|
  visits = job.state ? job.state['count'] : 0
  job.payloads.each { |payload| visits = payload.data == 'reset' ? 0 : visits + 1 }
  job.result = visits
  job.state = { count: visits }
end

handler.run
