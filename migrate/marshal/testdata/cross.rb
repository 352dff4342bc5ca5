# What Ruby says of dumps, for TestRuby.
#
#   cross.rb generate SEED COUNT   random values, a line each: their dump, their JSON or why not, what is lost
#   cross.rb dump                  reads JSON in base64, a line each, and writes the dump of what JSON.parse gives, in base64
#   cross.rb load                  reads dumps in base64, a line each, and writes the JSON of what Marshal.load gives
require 'json'
require 'set'
require 'bigdecimal'
require 'date'

Point = Struct.new(:x, :y)
class Custom
  def initialize(value) = @value = value
end
module Ext; end
class MyHash < Hash; end
class MyArray < Array; end
class MyString < String; end
def self.flagged(*args) = args.last
singleton_class.send :ruby2_keywords, :flagged

def text(value) = JSON.generate(value, max_nesting: 0)

# Why JSON cannot say a value, or nil. lost collects what it does not say.
def why_not(v, lost, open = [])
  return 'it holds itself' if open.any? { |o| o.equal? v }
  return "a #{v.class.name.downcase}" if v.is_a? Module
  return if [nil, true, false].include? v
  return "an object of #{v.class}" unless [Integer, Float, String, Symbol, Array, Hash].include? v.class
  return 'extended by Ext' if v.is_a? Ext
  return 'instance variables of a String' if v.is_a?(String) && !v.instance_variables.empty?
  case v
  when Integer then lost[:integer_over_53_bits] = true if v.abs > 2**53
  when Float then return "the float #{v}" unless v.finite?
  when String, Symbol
    lost[:symbol] = true if v.is_a? Symbol
    s = v.to_s
    if s.encoding == Encoding::UTF_8
      return 'a string that is not valid UTF-8' unless s.valid_encoding?
    elsif s.encoding.ascii_compatible? && !s.encoding.dummy? && s.ascii_only?
      lost[:encoding] = true if v.is_a? String
    else
      return "a string in #{s.encoding}"
    end
  when Array
    return 'nested deeper than 100' if open.size >= 100
    v.each { |x| (w = why_not(x, lost, open + [v])) and return w }
  when Hash
    return 'nested deeper than 100' if open.size >= 100
    return 'a hash that compares by identity' if v.compare_by_identity?
    seen = {}
    twice = nil
    v.each do |k, x|
      case k
      when String, Symbol then (w = why_not(k, lost, open)) and return w
      when Integer, nil, true, false then lost[:key] = true
      else return "a hash's key of #{k.class}"
      end
      twice ||= 'two keys of a hash are …' if seen[k.to_s]
      seen[k.to_s] = true
      (w = why_not(x, lost, open + [v])) and return w
    end
    return twice if twice
    unless v.default.nil?
      lost[:default] = true
      (w = why_not(v.default, {}, open + [v])) and return "the default of a hash: #{w}"
    end
  end
  "instance variables of a#{'n' if v.is_a? Array} #{v.class}" unless v.instance_variables.empty? # they stand at the end
end

# Values: what was made before is used again, so that dumps have links.
class Values
  ASCII = Encoding.list.select { |e| e.ascii_compatible? && !e.dummy? }
  OTHER = %w[UTF-16LE UTF-16BE UTF-32LE ISO-2022-JP Shift_JIS EUC-JP ISO-8859-1 Windows-1251 GB18030].freeze
  WORDS = ['', 'a', 'key', 'Zoë', '日本', "\u{1F600}", "\u2028", "\u0000\u001f\u007f", "\"\\/\b\f\n\r\t", 'same', '1', '-5', 'true', 'x' * 300, "\ud7ff\ue000\u{10ffff}"].freeze

  def initialize(seed) = (@random, @made = Random.new(seed), [])
  def one_in(n) = @random.rand(n).zero?
  def pick(of) = of[@random.rand(of.size)]

  def value(depth = 0)
    return pick(@made) if !@made.empty? && one_in(6)
    v = case @random.rand(depth > 6 ? 10 : 16)
        when 0 then pick([nil, true, false])
        when 1..2 then integer
        when 3 then float
        when 4..7 then string
        when 8 then symbol
        when 9 then one_in(12) ? odd(depth) : integer
        when 10..12 then Array.new(@random.rand(5)) { value(depth + 1) }
        else hash(depth)
        end
    @made << v
    v
  end

  def integer
    n = pick([0, 1, 122, 123, 124, 255, 256, 257, 65_535, 65_536, 2**24, 2**30 - 1, 2**30, 2**31, 2**32, 2**53, 2**53 + 1, 2**62, 2**63, 2**64, 2**70, @random.rand(1000), @random.rand(2**80), @random.rand(2**600)])
    n += @random.rand(5) - 2 if one_in(2)
    one_in(2) ? n : -n
  end

  def float
    case @random.rand(5)
    when 0 then [@random.bytes(8)].first.unpack1('D')
    when 1 then @random.rand(10**@random.rand(1..18)) / 10.0**@random.rand(20)
    when 2 then 10.0**(@random.rand(700) - 350) * pick([1, -1])
    when 3 then pick([0.0, -0.0, 5e-324, Float::MAX, Float::MIN, Float::EPSILON, 1e15, 1e16, 9_999_999_999_999_998.0, 1e-4, 1e-5, 0.1 + 0.2, 2.0**70, Float::NAN, -Float::INFINITY])
    else @random.rand
    end
  end

  def string
    s = one_in(10) ? @random.bytes(@random.rand(6)) : pick(WORDS).dup
    case @random.rand(14)
    when 0 then s.force_encoding(pick(ASCII))
    when 1 then s.valid_encoding? ? s.encode(pick(OTHER), invalid: :replace, undef: :replace) : s.b
    when 2 then s.b
    when 3 then s.ascii_only? ? s.encode('US-ASCII') : s
    when 4 then s.force_encoding(pick(Encoding.list))
    else s.force_encoding('UTF-8')
    end
  rescue StandardError
    s.b
  end

  def symbol
    string.to_sym
  rescue StandardError
    :symbol
  end

  def key
    case @random.rand(20)
    when 0..6 then symbol
    when 7..8 then integer
    when 9 then pick([nil, true, false])
    when 10 then one_in(4) ? pick([1.5, [1], Point.new(1, 2), String, MyString.new('k'), {}]) : 'k'
    when 11 then (@made.grep(String) + ['k']).last
    else one_in(3) ? string : "k#{@random.rand(30)}"
    end
  end

  def hash(depth)
    h = one_in(12) ? Hash.new(value(depth + 1)) : {}
    @random.rand(one_in(10) ? 25 : 5).times { h[key] = value(depth + 1) }
    one_in(20) && !h.empty? ? flag(h) : h
  end

  def flag(hash) = Hash.ruby2_keywords_hash(hash)

  def odd(depth)
    inner = value(depth + 1)
    case @random.rand(22)
    when 0 then Point.new(inner, 1)
    when 1 then Custom.new(inner)
    when 2 then Set[inner]
    when 3 then Time.at(@random.rand(10**9))
    when 4 then BigDecimal('1.5')
    when 5 then Date.new(2027, 1, 15)
    when 6 then /x/i
    when 7 then 1..2
    when 8 then pick([String, Comparable])
    when 9 then MyHash.new.merge('a' => inner)
    when 10 then MyArray[inner]
    when 11 then MyString.new('s')
    when 12 then [inner].extend(Ext)
    when 13 then 's'.dup.extend(Ext)
    when 14 then { 'a' => inner }.compare_by_identity
    when 15 then 's'.dup.tap { |s| s.instance_variable_set(:@tag, inner) }
    when 16 then [inner].tap { |a| a.instance_variable_set(:@tag, 1) }
    when 17 then [inner].tap { |a| a << a }
    when 18 then { 'a' => inner }.tap { |h| h['me'] = h }
    when 19 then Hash.new(0).tap { |h| h.default = h }
    when 20 then Rational(1, 3)
    else (@random.rand(4) + 96).times.reduce(inner) { |v, _| [v] }
    end
  end
end

def generate(seed, count)
  count.times do |i|
    v = Values.new(seed + i).value
    dump = Marshal.dump(v)
    begin
      v = Marshal.load(dump)
    rescue ArgumentError, TypeError # a symbol that is not valid in its encoding
      next
    end
    lost = {}
    why = why_not(v, lost)
    line = { marshal_b64: [dump].pack('m0'), why_not: why, lossy: why ? nil : lost.keys }
    # The text as a string, so that it is not taken apart.
    line[:text] = text(v) unless why
    puts JSON.generate(line)
  end
end

def load
  $stdin.each_line do |line|
    puts text(Marshal.load(line.chomp.unpack1('m0')))
  rescue StandardError, SystemStackError => e
    puts "!#{e.class}: #{e.message.inspect}"
  end
end

# Equal keys are one object, by a table of Ruby's that its garbage collector takes out of: without it that is always so.
def dump
  GC.disable
  $stdin.each_line { |line| puts [Marshal.dump(JSON.parse(line.chomp.unpack1('m0').force_encoding('UTF-8')))].pack('m0') }
end

$stdout.set_encoding('UTF-8')
case ARGV[0]
when 'generate' then generate(ARGV[1].to_i, ARGV[2].to_i)
when 'dump' then dump
else load
end
