# The Homebrew formula. `cargo xtask dist` fills in the version and the checksums and puts it beside the archives.
class Forebay < Formula
  desc "Durable message queue with competing consumers and load leveling"
  version "@VERSION@"
  license "Apache-2.0"

  on_linux do
    on_intel do
      url "file://@FOLDER@/forebay-@VERSION@-x86_64-linux.tar.gz"
      sha256 "@SHA256_X86_64@"
    end
    on_arm do
      url "file://@FOLDER@/forebay-@VERSION@-aarch64-linux.tar.gz"
      sha256 "@SHA256_AARCH64@"
    end
  end

  def install
    bin.install "forebay"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/forebay.bash" => "forebay"
    zsh_completion.install "completions/_forebay"
    fish_completion.install "completions/forebay.fish"
  end

  service do
    run [opt_bin/"forebay", "serve", "--data", var/"forebay"]
    keep_alive successful_exit: false
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/forebay --version")
  end
end
