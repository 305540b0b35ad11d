// Why: commands that ask a running cluster share where to ask, with which certificates, and what to say when
// no answer comes.
// Thread-safety: one thread; calls block for up to their timeout.
#pragma once

#include <memory>
#include <string>

#include "net/error.hpp"
#include "net/executor.hpp"
#include "net/tls.hpp"
#include "runtime/node.hpp"

namespace CLI {
class App;
}

namespace troupe::cli {

struct ApiArguments {
  std::string address;  ///< "host:port" of any node of the cluster
  std::string tls_folder;
  std::string name = "cli";  ///< of the certificate files in the folder
  std::string cluster = "troupe";
  NodeTls tls;

  void add_to(CLI::App& command);
};

class ApiClient {
 public:
  /// invalid_argument, not_found, …: the address or the TLS files.
  static expected<ApiClient> make(const ApiArguments& arguments);

  /// The JSON body of a 2xx answer. An error that the API gave keeps its code and text.
  expected<std::string> get(const std::string& target,
                            net::Duration timeout = std::chrono::seconds{2}) const;
  expected<std::string> post(const std::string& target,
                             net::Duration timeout = std::chrono::seconds{2}) const;

  const std::string& address() const noexcept { return address_; }

 private:
  ApiClient() = default;
  expected<std::string> call(const std::string& method, const std::string& target,
                             net::Duration timeout) const;

  std::string address_;
  std::shared_ptr<const net::TlsContext> tls_;
};

}  // namespace troupe::cli
