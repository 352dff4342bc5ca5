# Moves what still waits in a queue of Ruby's Lowkiq to lowkiq: a worker in the place of
# the old one, under its queue name, that pushes instead of working.
#
#     # in place of the old worker's perform:
#     module OrdersWorker
#       extend Lowkiq::Worker
#       self.shards_count = 5        # as it was
#       self.batch_size = 100
#       def self.perform(payloads_by_id)
#         Forward.new('http://127.0.0.1:7948/api/v1/queues/orders/jobs').call(payloads_by_id)
#       end
#     end
#
# Lowkiq hands over the payloads of an id oldest first, so their order is kept; a failed
# push is a failed batch, which Lowkiq tries again. An equal payload that still waits is
# merged, so trying again does no harm.
require 'json'
require 'net/http'

class Forward
  def initialize(url, token = ENV['LOWKIQ_TOKEN'])
    @uri = URI(url)
    @token = token
  end

  def call(payloads_by_id)
    jobs = payloads_by_id.flat_map do |id, payloads|
      payloads.map { |payload| JSON.generate(id: id.to_s, payload: payload) }
    end
    refused = push(jobs).reject { |result| result['ok'] }
    raise "not pushed: #{refused.first(3)}" unless refused.empty?
  end

  private

  def push(lines)
    request = Net::HTTP::Post.new(@uri, 'Content-Type' => 'application/x-ndjson')
    request['Authorization'] = "Bearer #{@token}" if @token
    request.body = lines.join("\n")
    answer = Net::HTTP.start(@uri.host, @uri.port, use_ssl: @uri.scheme == 'https') { |http| http.request(request) }
    raise "push: #{answer.code} #{answer.body}" unless answer.code == '200'

    JSON.parse(answer.body)['results']
  end
end
