// Why: tests of TLS need cluster CAs and certificates in a temporary folder, and see what is
// logged.
// Thread-safety: `LogCapture` any thread; the rest one thread.
#pragma once

#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "net/certs.hpp"
#include "net/tls.hpp"

namespace troupe::net::test {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "troupe-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw std::runtime_error("mkdtemp failed");
    }
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A cluster CA and the certificates it issues.
class TestCa {
 public:
  explicit TestCa(std::string cluster) : cluster_(std::move(cluster)) {
    CaOptions options;
    options.cluster = cluster_;
    const auto made = create_cluster_ca(dir_.path(), options);
    if (!made) {
      throw std::runtime_error(made.error().text());
    }
  }

  TlsConfig issue(const std::string& name, Validity validity = {30}) {
    NodeCertificateOptions options;
    options.name = name;
    options.ips = {"127.0.0.1"};
    options.validity = validity;
    const auto made = issue_node_certificate(dir_.path(), options);
    if (!made) {
      throw std::runtime_error(made.error().text());
    }
    return {made->ca.string(), made->certificate.string(), made->key.string(), cluster_};
  }

  /// A CA file that also trusts `other`.
  std::string trust_also(const TestCa& other) {
    const auto both = dir_.path() / "both.pem";
    std::ofstream out(both);
    out << std::ifstream(dir_.path() / "ca.pem").rdbuf()
        << std::ifstream(other.dir_.path() / "ca.pem").rdbuf();
    return both.string();
  }

  std::string ca_file() const { return (dir_.path() / "ca.pem").string(); }

 private:
  std::string cluster_;
  TempDir dir_;
};

inline std::shared_ptr<const TlsContext> load_tls(const TlsConfig& config) {
  auto loaded = TlsContext::load(config);
  if (!loaded) {
    throw std::runtime_error(loaded.error().text());
  }
  return *loaded;
}

/// Replaces the default logger while it lives.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("capture", sink_));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// How many lines contain `text`.
  std::size_t count(const std::string& text) const { return sink_->count(text); }
  std::string all() const { return sink_->all(); }

 private:
  class Sink final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::size_t count(const std::string& text) {
      const std::lock_guard lock(mutex_);
      std::size_t found = 0;
      for (const auto& line : lines_) {
        found += line.find(text) != std::string::npos ? 1 : 0;
      }
      return found;
    }
    std::string all() {
      const std::lock_guard lock(mutex_);
      std::string out;
      for (const auto& line : lines_) {
        out += line + "\n";
      }
      return out;
    }

   protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
      lines_.emplace_back(message.payload.data(), message.payload.size());
    }
    void flush_() override {}

   private:
    std::vector<std::string> lines_;
  };

  std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace troupe::net::test
