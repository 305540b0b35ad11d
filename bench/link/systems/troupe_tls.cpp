// Troupe's links with TLS 1.3 and mutual certificates.
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "link/troupe_link.hpp"
#include "net/certs.hpp"
#include "net/tls.hpp"

namespace troupe::bench {

namespace {

constexpr const char* folder_variable = "TROUPE_BENCH_TLS";

[[noreturn]] void give_up(const error& reason) {
  std::cerr << "bench_link: no certificates: " << reason.text() << '\n';
  std::exit(1);
}

// The driver makes throw-away certificates before it starts the server process, which inherits the name
// of the folder; the driver removes it.
class Certificates {
 public:
  Certificates() {
    if (const char* inherited = std::getenv(folder_variable)) {
      folder_ = inherited;
      return;
    }
    std::string name = (std::filesystem::temp_directory_path() / "troupe-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      give_up({ec::system_error, "cannot make a temporary folder"});
    }
    folder_ = name;
    own_ = true;
    net::CaOptions ca;
    ca.cluster = "bench";
    if (auto made = net::create_cluster_ca(folder_, ca); !made) {
      give_up(made.error());
    }
    net::NodeCertificateOptions node;
    node.name = "node";
    node.ips = {"127.0.0.1"};
    if (auto made = net::issue_node_certificate(folder_, node); !made) {
      give_up(made.error());
    }
    setenv(folder_variable, folder_.c_str(), 1);
  }

  ~Certificates() {
    if (own_) {
      std::error_code ignored;
      std::filesystem::remove_all(folder_, ignored);
    }
  }

  std::shared_ptr<const net::TlsContext> context() const {
    auto loaded = net::TlsContext::load(
        {folder_ + "/ca.pem", folder_ + "/node.pem", folder_ + "/node.key", "bench"});
    if (!loaded) {
      give_up(loaded.error());
    }
    return *loaded;
  }

 private:
  std::string folder_;
  bool own_ = false;
};

const Certificates certificates;

struct TlsLink : TroupeLink {
  explicit TlsLink(caf::actor_system& system) : TroupeLink(system, certificates.context()) {}
};

const Registration registration{"troupe_tls",
                                [] { return std::make_unique<CafSystem<TlsLink>>(); }};

}  // namespace

}  // namespace troupe::bench
