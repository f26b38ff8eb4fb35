# Runs a Homebrew formula without Homebrew: its install steps, then its test.
#
#   ruby brew.rb FORMULA SOURCE PREFIX
#
# SOURCE is the unpacked source, PREFIX an empty or new folder. The last line is JSON: what the
# formula says about itself. It is compiled with little optimisation: only the steps matter.
require "fileutils"
require "json"
require "open3"
require "pathname"

FORMULA, SOURCE, PREFIX = ARGV.map { |path| Pathname.new(path).expand_path }

# The part of Homebrew's language that the formula uses. Anything else fails.
class Formula
  SAID = Hash.new { |said, key| said[key] = [] }

  class << self
    %i[desc homepage url sha256 license].each do |name|
      define_method(name) { |text| SAID[name] << text }
    end

    def depends_on(what)
      SAID[:depends_on] << (what.is_a?(Hash) ? what.keys.first : what)
    end

    def uses_from_macos(what)
      SAID[:uses_from_macos] << what
    end

    def service(&block)
      @service = block
    end

    def test(&block)
      @test = block
    end

    def inherited(made)
      super
      Formula.const_set(:MADE, made)
    end

    def blocks
      [@service, @test]
    end
  end

  def bin
    PREFIX / "bin"
  end
  alias opt_bin bin

  def var
    PREFIX / "var"
  end

  def version
    SAID[:url].first[/-([0-9.]+)\.tar\.gz$/, 1]
  end

  def std_cmake_args
    ["-DCMAKE_INSTALL_PREFIX=#{PREFIX}", "-DCMAKE_BUILD_TYPE=Debug",
     "-DCMAKE_C_FLAGS_DEBUG=-O1"]
  end

  def system(*words)
    Kernel.system(*words.map(&:to_s), chdir: SOURCE.to_s, out: :err) or abort "failed: #{words}"
  end

  def shell_output(command)
    text, status = Open3.capture2(command)
    status.success? or abort "failed: #{command}"
    text
  end

  def assert_match(wanted, text)
    text.include?(wanted) or abort "no #{wanted} in: #{text}"
  end

  def refute_empty(text)
    text.empty? and abort "an empty answer"
  end

  def run(words)
    SAID[:service] = words.map(&:to_s)
  end

  def keep_alive(*) end

  def log_path(*) end

  def error_log_path(*) end
end

load FORMULA.to_s
made = Formula::MADE.new
service, test = Formula::MADE.blocks
made.install
made.instance_eval(&service)
made.instance_eval(&test)
puts JSON.generate(Formula::SAID)
