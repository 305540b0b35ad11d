// Why: TLS between nodes is mutual and TLS 1.3 only: every node proves with a certificate of the
// cluster's own CA that it belongs here. Everything OpenSSL says is turned into one clear sentence.
// Thread-safety: a `TlsContext` is immutable after `load` and may be used from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "net/error.hpp"

struct ssl_ctx_st;
struct ssl_st;
struct x509_store_ctx_st;

namespace troupe::net {

/// PEM files.
struct TlsConfig {
  std::string ca_file;    ///< the cluster's CA; nothing else is trusted
  std::string cert_file;  ///< this node's certificate (chain)
  std::string key_file;   ///< its private key
  std::string cluster;    ///< cluster name that peer certificates must carry
};

class TlsContext {
 public:
  /// Reads the files; not_found, invalid_argument (key does not fit, expired own certificate, …).
  static expected<std::shared_ptr<const TlsContext>> load(const TlsConfig& config);

  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  /// Owned by this object; whoever keeps it longer takes a reference.
  ssl_ctx_st* server() const noexcept { return server_; }
  ssl_ctx_st* client() const noexcept { return client_; }
  const std::string& cluster() const noexcept { return cluster_; }

 private:
  TlsContext() = default;

  ssl_ctx_st* server_ = nullptr;
  ssl_ctx_st* client_ = nullptr;
  std::string cluster_;
};

/// OpenSSL's verify callback, with the identity of the peer: after OpenSSL has accepted the chain,
/// the certificate must be for `dialled_host` (empty: we are the server) or carry the cluster's
/// name. `reason` receives the text when it refuses.
bool verify_peer(bool preverified, x509_store_ctx_st* store, std::string_view dialled_host,
                 std::string_view cluster, std::string& reason);

/// One sentence for an entry of OpenSSL's error queue, alerts of the peer included ("the peer
/// refused our certificate: unknown CA").
std::string describe_tls_error(unsigned long code);

/// As above, for a handshake on `ssl` that failed with `code`; `refusal` is what `verify_peer`
/// said.
std::string describe_handshake_failure(unsigned long code, const std::string& refusal);

}  // namespace troupe::net
