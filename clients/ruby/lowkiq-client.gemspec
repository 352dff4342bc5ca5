# frozen_string_literal: true

Gem::Specification.new do |spec|
  spec.name = 'lowkiq-client'
  spec.version = File.read(File.join(__dir__, 'lib/lowkiq/client.rb'))[/VERSION = '(.*)'/, 1]
  spec.summary = 'Pushes jobs to lowkiq and handles them'
  spec.authors = ['The lowkiq authors']
  spec.homepage = 'https://github.com/lowkiq/lowkiq'
  spec.license = 'Apache-2.0'
  spec.required_ruby_version = '>= 2.7'
  spec.files = ['lib/lowkiq/client.rb', 'README.md']
end
