# frozen_string_literal: true

require_relative 'client_test'
require_relative 'handler_test'
