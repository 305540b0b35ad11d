#include "net/certs.hpp"

#include <algorithm>
#include <array>
#include <ctime>

#include <arpa/inet.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include "net/openssl_util.hpp"
#include "net/private_file.hpp"

namespace troupe::net {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::system_clock;

constexpr auto backdate = std::chrono::minutes{5};
constexpr int max_days = 36500;
constexpr std::size_t max_label = 48;   // the subject's common name holds 64 characters
constexpr std::size_t max_names = 100;  // alternative names in one certificate
constexpr std::size_t max_pem = 1U << 20U;
constexpr mode_t key_mode = 0600;
constexpr mode_t certificate_mode = 0644;

tl::unexpected<error> openssl_failure(const std::string& what) {
  return fail(ec::system_error, "cannot " + what + ": " + take_openssl_error());
}

// --- input ---------------------------------------------------------------------------------------

bool is_label_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

/// Labels end in URIs, subjects and file names, so they are kept plain.
expected<void> check_label(const std::string& what, const std::string& label) {
  const bool good = !label.empty() && label.size() <= max_label && label.front() != '.' &&
                    label.front() != '-' && std::all_of(label.begin(), label.end(), is_label_char);
  if (!good) {
    return fail(ec::invalid_argument, what + " \"" + label + "\" is not acceptable: use 1 to " +
                                          std::to_string(max_label) +
                                          " letters, digits, '.', '_' or '-', the first one a "
                                          "letter, digit or '_'");
  }
  return {};
}

expected<void> check_dns(const std::string& dns) {
  std::string_view host = dns;
  if (host.starts_with("*.")) {
    host.remove_prefix(2);
  }
  const bool good = !host.empty() && dns.size() <= 253 && host.front() != '.' &&
                    host.front() != '-' && host.find("..") == std::string_view::npos &&
                    std::all_of(host.begin(), host.end(), is_label_char);
  std::array<unsigned char, 16> address{};
  if (!good || inet_pton(AF_INET, dns.c_str(), address.data()) == 1) {
    return fail(ec::invalid_argument, "\"" + dns + "\" is not a host name (give addresses as IP)");
  }
  return {};
}

struct Period {
  std::time_t from = 0;
  std::time_t until = 0;
};

expected<Period> period_of(const Validity& validity) {
  if (!validity.valid_until && (validity.days < 1 || validity.days > max_days)) {
    return fail(ec::invalid_argument, "a validity of " + std::to_string(validity.days) +
                                          " days is not acceptable: give 1 to " +
                                          std::to_string(max_days));
  }
  const auto now = Clock::now();
  const auto until = validity.valid_until.value_or(now + std::chrono::days{validity.days});
  const auto from = validity.valid_from.value_or(std::min(now, until) - backdate);
  if (from >= until) {
    return fail(ec::invalid_argument, "the validity ends before it begins");
  }
  return Period{Clock::to_time_t(from), Clock::to_time_t(until)};
}

// --- certificates --------------------------------------------------------------------------------

expected<KeyPtr> make_key() {
  KeyPtr key{EVP_EC_gen("P-256")};
  if (!key) {
    return openssl_failure("generate a P-256 key");
  }
  return key;
}

bool set_random_serial(X509* certificate) {
  const BignumPtr number{BN_new()};
  // 127 bits with the top one set: positive, at most 16 bytes, never zero.
  return number && BN_rand(number.get(), 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool add_subject(X509* certificate, const std::string& common_name) {
  X509_NAME* name = X509_get_subject_name(certificate);
  const auto add = [&](const char* field, const std::string& text) {
    return X509_NAME_add_entry_by_txt(name, field, MBSTRING_ASC,
                                      reinterpret_cast<const unsigned char*>(text.data()),
                                      static_cast<int>(text.size()), -1, 0) == 1;
  };
  return add("O", "Troupe") && add("CN", common_name);
}

bool add_extension(X509* certificate, X509V3_CTX* context, int nid, const char* value) {
  const ExtensionPtr extension{X509V3_EXT_conf_nid(nullptr, context, nid, value)};
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

/// Appends a name whose value is text (DNS, URI). The text is data, never parsed by OpenSSL.
bool push_text_name(GENERAL_NAMES* names, int type, const std::string& text) {
  GeneralNamePtr name{GENERAL_NAME_new()};
  ASN1_IA5STRING* value = ASN1_IA5STRING_new();
  if (!name || value == nullptr ||
      ASN1_STRING_set(value, text.data(), static_cast<int>(text.size())) != 1) {
    ASN1_IA5STRING_free(value);
    return false;
  }
  GENERAL_NAME_set0_value(name.get(), type, value);
  return sk_GENERAL_NAME_push(names, name.get()) > 0 && name.release() != nullptr;
}

bool push_address(GENERAL_NAMES* names, const std::string& text) {
  GeneralNamePtr name{GENERAL_NAME_new()};
  ASN1_OCTET_STRING* value = a2i_IPADDRESS(text.c_str());
  if (!name || value == nullptr) {
    ASN1_OCTET_STRING_free(value);
    return false;
  }
  GENERAL_NAME_set0_value(name.get(), GEN_IPADD, value);
  return sk_GENERAL_NAME_push(names, name.get()) > 0 && name.release() != nullptr;
}

expected<void> add_names(X509* certificate, const std::string& cluster,
                         const std::vector<std::string>& dns, const std::vector<std::string>& ips) {
  const GeneralNamesPtr names{GENERAL_NAMES_new()};
  if (!names || !push_text_name(names.get(), GEN_URI, cluster_uri(cluster))) {
    return openssl_failure("add the cluster's name");
  }
  for (const auto& host : dns) {
    if (!push_text_name(names.get(), GEN_DNS, host)) {
      return openssl_failure("add the host name " + host);
    }
  }
  for (const auto& ip : ips) {
    if (!push_address(names.get(), ip)) {
      ERR_clear_error();
      return fail(ec::invalid_argument, "\"" + ip + "\" is not an IPv4 or IPv6 address");
    }
  }
  if (X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, 0) != 1) {
    return openssl_failure("add the alternative names");
  }
  return {};
}

/// An unsigned version 3 certificate with serial, subject, times and public key.
expected<CertificatePtr> make_certificate(const std::string& common_name, const Period& period,
                                          EVP_PKEY* key) {
  CertificatePtr certificate{X509_new()};
  const bool made = certificate && X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
                    set_random_serial(certificate.get()) &&
                    add_subject(certificate.get(), common_name) &&
                    ASN1_TIME_set(X509_getm_notBefore(certificate.get()), period.from) != nullptr &&
                    ASN1_TIME_set(X509_getm_notAfter(certificate.get()), period.until) != nullptr &&
                    X509_set_pubkey(certificate.get(), key) == 1;
  if (!made) {
    return openssl_failure("build a certificate");
  }
  return certificate;
}

struct ExtensionText {
  int nid;
  const char* value;
};

/// Adds the extensions and the key identifiers, sets the issuer and signs.
template <std::size_t N>
expected<void> finish(X509* certificate, X509* issuer, EVP_PKEY* issuer_key,
                      const std::array<ExtensionText, N>& extensions) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  bool good = X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1;
  for (const auto& extension : extensions) {
    good = good && add_extension(certificate, &context, extension.nid, extension.value);
  }
  // The subject's identifier first: a self-signed certificate takes the authority's from it.
  good = good && add_extension(certificate, &context, NID_subject_key_identifier, "hash") &&
         add_extension(certificate, &context, NID_authority_key_identifier, "keyid:always") &&
         X509_sign(certificate, issuer_key, EVP_sha256()) > 0;
  if (!good) {
    return openssl_failure("sign a certificate");
  }
  return {};
}

// --- files ---------------------------------------------------------------------------------------

expected<std::string> certificate_pem(X509* certificate) {
  const BioPtr out{BIO_new(BIO_s_mem())};
  if (!out || PEM_write_bio_X509(out.get(), certificate) != 1) {
    return openssl_failure("encode a certificate");
  }
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return std::string{data, static_cast<std::size_t>(size)};
}

expected<void> write_key(const fs::path& path, EVP_PKEY* key, bool overwrite) {
  const BioPtr out{BIO_new(BIO_s_secmem())};
  if (!out ||
      PEM_write_bio_PKCS8PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return openssl_failure("encode a key");
  }
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return write_file_atomically(path, {data, static_cast<std::size_t>(size)}, key_mode, overwrite);
}

expected<void> make_folder(const fs::path& folder) {
  std::error_code code;
  const bool made = fs::create_directories(folder, code);
  if (code || !fs::is_directory(folder, code)) {
    return fail(ec::system_error, "cannot create the folder " + folder.string() + ": " +
                                      (code ? code.message() : "it is a file"));
  }
  if (made) {
    fs::permissions(folder, fs::perms::owner_all, code);
  }
  return {};
}

/// Keys are never replaced by accident: each path must be free unless `overwrite`.
expected<void> check_free(std::initializer_list<fs::path> paths, bool overwrite) {
  for (const auto& path : paths) {
    std::error_code code;
    if (!overwrite && fs::exists(fs::symlink_status(path, code))) {
      return fail(ec::conflict, path.string() + " exists already; --force replaces it");
    }
  }
  return {};
}

struct Authority {
  CertificatePtr certificate;
  KeyPtr key;
  std::string pem;  ///< The whole file, which may hold more certificates.
  std::string cluster;
};

int refuse_passphrase(char*, int, int, void*) { return -1; }

expected<KeyPtr> load_ca_key(const fs::path& path) {
  const BioPtr in{BIO_new_file(path.c_str(), "r")};
  if (!in) {
    ERR_clear_error();
    return fail(ec::not_found, "cannot read the CA's key " + path.string() +
                                   "; create a CA with `troupe certs init`");
  }
  KeyPtr key{PEM_read_bio_PrivateKey(in.get(), nullptr, refuse_passphrase, nullptr)};
  if (!key) {
    return fail(ec::malformed,
                path.string() + " holds no plain PEM private key: " + take_openssl_error());
  }
  return key;
}

expected<Authority> load_authority(const fs::path& dir) {
  const fs::path file = dir / "ca.pem";
  Authority authority;
  auto pem = read_small_file(file, max_pem);
  if (!pem) {
    return fail(pem.error().code(), pem.error().text() + "; create a CA with `troupe certs init`");
  }
  authority.pem = std::move(*pem);
  auto key = load_ca_key(dir / "ca.key");
  if (!key) {
    return fail(key.error());
  }
  authority.key = std::move(*key);
  const BioPtr in{BIO_new_mem_buf(authority.pem.data(), static_cast<int>(authority.pem.size()))};
  while (in && !authority.certificate) {
    CertificatePtr next{PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)};
    if (!next) {
      break;
    }
    if (X509_check_private_key(next.get(), authority.key.get()) == 1) {
      authority.certificate = std::move(next);
    }
  }
  ERR_clear_error();
  if (!authority.certificate) {
    return fail(ec::malformed,
                file.string() + " holds no certificate that fits " + (dir / "ca.key").string());
  }
  const auto clusters = describe_certificate(authority.certificate.get()).clusters;
  if (clusters.size() != 1) {
    return fail(ec::malformed, file.string() + " does not name one cluster (a URI name " +
                                   cluster_uri("…") + "); was it made by `troupe certs init`?");
  }
  authority.cluster = clusters.front();
  return authority;
}

/// The node's period, kept within the CA's where the caller has not chosen an end.
expected<Period> node_period(const Validity& validity, X509* ca) {
  auto period = period_of(validity);
  if (!period || validity.valid_until) {
    return period;
  }
  const CertificateInfo info = describe_certificate(ca);
  if (info.valid_until <= Clock::now()) {
    return fail(ec::unauthorized, "the CA \"" + info.subject +
                                      "\" has expired; make a new one with `troupe certs init`");
  }
  period->until = std::min(period->until, Clock::to_time_t(info.valid_until));
  return period;
}

expected<void> check_request(const NodeCertificateOptions& options) {
  if (auto good = check_label("the node name", options.name); !good) {
    return good;
  }
  if (options.name == "ca") {
    return fail(ec::invalid_argument, "a node cannot be named \"ca\": its files would be the CA's");
  }
  if (options.dns.size() + options.ips.size() > max_names) {
    return fail(ec::limit_exceeded,
                "more than " + std::to_string(max_names) + " names for one certificate");
  }
  for (const auto& dns : options.dns) {
    if (auto good = check_dns(dns); !good) {
      return good;
    }
  }
  return {};
}

/// Puts the CA's certificates beside the node's. The same content twice is no conflict.
expected<void> copy_ca(const fs::path& path, const std::string& pem, bool overwrite) {
  if (const auto present = read_small_file(path, max_pem); present && *present == pem) {
    return {};
  }
  if (auto good = check_free({path}, overwrite); !good) {
    return fail(good.error().code(), good.error().text() + " (it belongs to another CA)");
  }
  return write_file_atomically(path, pem, certificate_mode, overwrite);
}

constexpr std::array<ExtensionText, 2> ca_extensions{{
    {NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
    {NID_key_usage, "critical,keyCertSign,cRLSign"},
}};
constexpr std::array<ExtensionText, 3> node_extensions{{
    {NID_basic_constraints, "critical,CA:FALSE"},
    {NID_key_usage, "critical,digitalSignature"},
    {NID_ext_key_usage, "serverAuth,clientAuth"},
}};

}  // namespace

expected<CaFiles> create_cluster_ca(const fs::path& dir, const CaOptions& options) {
  const CaFiles files{dir / "ca.pem", dir / "ca.key"};
  auto step = check_label("the cluster name", options.cluster);
  const auto period = period_of(options.validity);
  if (step && !period) {
    step = fail(period.error());
  }
  if (step) {
    step = check_free({files.certificate, files.key}, options.overwrite);
  }
  if (step) {
    step = make_folder(dir);
  }
  if (!step) {
    return fail(step.error());
  }
  const auto key = make_key();
  if (!key) {
    return fail(key.error());
  }
  const auto certificate = make_certificate("Troupe CA " + options.cluster, *period, key->get());
  if (!certificate) {
    return fail(certificate.error());
  }
  step = add_names(certificate->get(), options.cluster, {}, {});
  if (step) {
    step = finish(certificate->get(), certificate->get(), key->get(), ca_extensions);
  }
  const auto pem = certificate_pem(certificate->get());
  if (step && !pem) {
    step = fail(pem.error());
  }
  if (step) {
    step = write_key(files.key, key->get(), options.overwrite);
  }
  if (step) {
    step = write_file_atomically(files.certificate, *pem, certificate_mode, options.overwrite);
  }
  if (!step) {
    return fail(step.error());
  }
  return files;
}

expected<NodeCertificateFiles> issue_node_certificate(const fs::path& ca_dir,
                                                      const NodeCertificateOptions& options) {
  const fs::path out = options.out.empty() ? ca_dir : options.out;
  NodeCertificateFiles files{
      out / (options.name + ".pem"), out / (options.name + ".key"), out / "ca.pem", {}};
  auto step = check_request(options);
  if (step) {
    step = check_free({files.certificate, files.key}, options.overwrite);
  }
  if (!step) {
    return fail(step.error());
  }
  const auto authority = load_authority(ca_dir);
  if (!authority) {
    return fail(authority.error());
  }
  const auto period = node_period(options.validity, authority->certificate.get());
  if (!period) {
    return fail(period.error());
  }
  const auto key = make_key();
  if (!key) {
    return fail(key.error());
  }
  const auto certificate = make_certificate(options.name, *period, key->get());
  if (!certificate) {
    return fail(certificate.error());
  }
  step = add_names(certificate->get(), authority->cluster, options.dns, options.ips);
  if (step) {
    step = finish(certificate->get(), authority->certificate.get(), authority->key.get(),
                  node_extensions);
  }
  const auto pem = certificate_pem(certificate->get());
  if (step && !pem) {
    step = fail(pem.error());
  }
  if (step) {
    step = make_folder(out);
  }
  if (step) {
    step = copy_ca(files.ca, authority->pem, options.overwrite);
  }
  if (step) {
    step = write_key(files.key, key->get(), options.overwrite);
  }
  if (step) {
    step = write_file_atomically(files.certificate, *pem, certificate_mode, options.overwrite);
  }
  if (!step) {
    return fail(step.error());
  }
  files.info = describe_certificate(certificate->get());
  return files;
}

}  // namespace troupe::net
