// Why: nodes prove with certificates that they belong to the same cluster. This is all that is
// needed to make such certificates without an organisation's own PKI, and the one rule by which a
// peer's certificate is judged once OpenSSL has verified its chain. docs/tls.md tells the whole
// story. Thread-safety: every function may be called from any thread; the files belong to one
// caller at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <openssl/types.h>

#include "net/error.hpp"

namespace troupe::net {

/// Decides whether a peer whose chain is already verified may speak for `cluster`.
///
/// `dialled_host`: the name or address this node dialled (without port; "[::1]" or "::1"), or empty
/// when the peer dialled us. Accepts a certificate with the URI name `cluster_uri(cluster)`. A
/// certificate without any cluster URI is accepted from a dialled server if its DNS or IP names
/// match the host. One that names only other clusters is refused. The subject's common name never
/// counts. Error: ec::unauthorized, its text names what the certificate has and what was expected.
expected<void> check_peer_identity(X509* certificate, std::string_view dialled_host,
                                   std::string_view cluster);

/// "troupe://cluster/<cluster>", the URI name that certificates of a cluster carry.
std::string cluster_uri(std::string_view cluster);

/// What a certificate says about itself. Text is cleaned of unprintable bytes.
struct CertificateInfo {
  std::string subject;                ///< "CN=alpha,O=Troupe"
  std::string issuer;                 ///< As `subject`.
  std::string serial;                 ///< Upper-case hexadecimal.
  std::vector<std::string> clusters;  ///< The names in its cluster URIs.
  std::vector<std::string> dns;       ///< DNS names.
  std::vector<std::string> ips;       ///< Addresses as text.
  std::chrono::system_clock::time_point valid_from;
  std::chrono::system_clock::time_point valid_until;
};

CertificateInfo describe_certificate(X509* certificate);

/// The first certificate of a PEM file. Errors: ec::not_found, ec::malformed.
expected<CertificateInfo> describe_certificate_file(const std::filesystem::path& file);

/// From when until when a certificate holds. Where a field is empty, `valid_from` is five minutes
/// ago (clocks differ) and `valid_until` is `days` from now. Tests set them to make expired
/// certificates.
struct Validity {
  int days = 0;  ///< 1 to 36500.
  std::optional<std::chrono::system_clock::time_point> valid_from = {};
  std::optional<std::chrono::system_clock::time_point> valid_until = {};
};

struct CaOptions {
  std::string cluster = "troupe";  ///< 1 to 48 of A-Z a-z 0-9 . _ -
  Validity validity{3650};
  bool overwrite = false;  ///< Replace an existing CA. Its certificates are then worth nothing.
};

struct CaFiles {
  std::filesystem::path certificate;  ///< DIR/ca.pem
  std::filesystem::path key;          ///< DIR/ca.key, mode 0600
};

/// Creates a cluster CA (P-256, self-signed) in `dir`, which is made if absent.
/// Errors: ec::conflict (a CA is there already), ec::invalid_argument, ec::system_error.
expected<CaFiles> create_cluster_ca(const std::filesystem::path& dir, const CaOptions& options);

struct NodeCertificateOptions {
  std::string name;              ///< As `CaOptions::cluster`; not "ca". Also the stem of the files.
  std::vector<std::string> dns;  ///< Host names, "*.example.org" allowed.
  std::vector<std::string> ips;  ///< IPv4 or IPv6 addresses.
  Validity validity{825};        ///< Never beyond the CA's own, unless `valid_until` is set.
  std::filesystem::path out;     ///< Where the files go; empty: the folder of the CA.
  bool overwrite = false;        ///< Replace existing files.
};

struct NodeCertificateFiles {
  std::filesystem::path certificate;  ///< OUT/<name>.pem
  std::filesystem::path key;          ///< OUT/<name>.key, mode 0600
  std::filesystem::path ca;           ///< OUT/ca.pem, a copy of the CA file
  CertificateInfo info;
};

/// Issues a certificate for one node (P-256; TLS server and client) from the CA in `ca_dir`. Its
/// cluster is the CA's. `ca.pem` may hold several CAs (rotation): the one that fits `ca.key` signs.
/// Errors: ec::not_found (no CA there), ec::conflict (files exist), ec::invalid_argument,
/// ec::unauthorized (the CA has expired), ec::malformed, ec::system_error.
expected<NodeCertificateFiles> issue_node_certificate(const std::filesystem::path& ca_dir,
                                                      const NodeCertificateOptions& options);

}  // namespace troupe::net
