#include <catch2/catch.hpp>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/certs.hpp"
#include "net/openssl_util.hpp"
#include "net/private_file.hpp"

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::net;

namespace {

using StorePtr = std::unique_ptr<X509_STORE, OpenSslDeleter<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, OpenSslDeleter<X509_STORE_CTX_free>>;

/// A folder that goes with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "troupe-certs-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string content_of(const fs::path& path) {
  std::ifstream in{path, std::ios::binary};
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

unsigned mode_of(const fs::path& path) {
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  return info.st_mode & 0777U;
}

std::vector<CertificatePtr> load(const fs::path& path) {
  const BioPtr in{BIO_new_file(path.c_str(), "r")};
  REQUIRE(in);
  std::vector<CertificatePtr> all;
  while (X509* next = PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)) {
    all.emplace_back(next);
  }
  ERR_clear_error();
  REQUIRE_FALSE(all.empty());
  return all;
}

/// X509_V_OK or what OpenSSL finds wrong, exactly as a TLS server or client would ask.
int verify(const fs::path& ca, X509* leaf, int purpose) {
  const StorePtr store{X509_STORE_new()};
  for (const auto& anchor : load(ca)) {
    REQUIRE(X509_STORE_add_cert(store.get(), anchor.get()) == 1);
  }
  const StoreContextPtr context{X509_STORE_CTX_new()};
  REQUIRE(X509_STORE_CTX_init(context.get(), store.get(), leaf, nullptr) == 1);
  X509_STORE_CTX_set_purpose(context.get(), purpose);
  X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_X509_STRICT);
  X509_verify_cert(context.get());
  return X509_STORE_CTX_get_error(context.get());
}

CaFiles make_ca(const fs::path& dir, const std::string& cluster = "prod") {
  CaOptions options;
  options.cluster = cluster;
  auto made = create_cluster_ca(dir, options);
  REQUIRE(made);
  return *made;
}

NodeCertificateOptions node(const std::string& name) {
  NodeCertificateOptions options;
  options.name = name;
  return options;
}

bool mentions(const error& err, const std::string& text) {
  return err.text().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a cluster CA is a proper certificate authority") {
  const TempFolder folder;
  const auto ca = make_ca(folder / "pki");
  CHECK(mode_of(ca.key) == 0600U);
  CHECK(mode_of(ca.certificate) == 0644U);
  CHECK(mode_of(folder / "pki") == 0700U);

  const auto certificates = load(ca.certificate);
  X509* certificate = certificates.front().get();
  CHECK(X509_get_version(certificate) == X509_VERSION_3);
  CHECK(X509_check_ca(certificate) == 1);
  CHECK(X509_get_pathlen(certificate) == 0);
  CHECK(X509_get_key_usage(certificate) == (KU_KEY_CERT_SIGN | KU_CRL_SIGN));
  CHECK(X509_get_signature_nid(certificate) == NID_ecdsa_with_SHA256);
  const int at = X509_get_ext_by_NID(certificate, NID_basic_constraints, -1);
  REQUIRE(at >= 0);
  CHECK(X509_EXTENSION_get_critical(X509_get_ext(certificate, at)) == 1);

  const auto info = describe_certificate(certificate);
  CHECK(info.subject == "CN=Troupe CA prod,O=Troupe");
  CHECK(info.issuer == info.subject);
  CHECK(info.clusters == std::vector<std::string>{"prod"});
  const auto days =
      std::chrono::duration_cast<std::chrono::hours>(info.valid_until - info.valid_from) /
      std::chrono::hours{24};
  CHECK(days == 3650);
  CHECK(info.valid_from < std::chrono::system_clock::now() - std::chrono::minutes{4});
}

TEST_CASE("a node certificate verifies as TLS server and as TLS client") {
  const TempFolder folder;
  make_ca(folder / "pki");
  auto options = node("alpha");
  options.dns = {"alpha.example.org", "*.pool.example.org"};
  options.ips = {"10.1.2.3", "fd00::7"};
  options.out = folder / "alpha";
  const auto files = issue_node_certificate(folder / "pki", options);
  REQUIRE(files);
  CHECK(mode_of(files->key) == 0600U);
  CHECK(content_of(files->ca) == content_of(folder / "pki/ca.pem"));

  const auto certificates = load(files->certificate);
  X509* certificate = certificates.front().get();
  CHECK(verify(files->ca, certificate, X509_PURPOSE_SSL_SERVER) == X509_V_OK);
  CHECK(verify(files->ca, certificate, X509_PURPOSE_SSL_CLIENT) == X509_V_OK);
  CHECK(X509_check_ca(certificate) == 0);
  CHECK(X509_get_key_usage(certificate) == KU_DIGITAL_SIGNATURE);
  CHECK(X509_get_extended_key_usage(certificate) == (XKU_SSL_SERVER | XKU_SSL_CLIENT));
  CHECK(files->info.subject == "CN=alpha,O=Troupe");
  CHECK(files->info.dns == options.dns);
  CHECK(files->info.ips == options.ips);
  CHECK(files->info.clusters == std::vector<std::string>{"prod"});
  CHECK(describe_certificate_file(files->certificate)->serial == files->info.serial);

  const BioPtr in{BIO_new_file(files->key.c_str(), "r")};
  const KeyPtr key{PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr)};
  REQUIRE(key);
  CHECK(EVP_PKEY_get_base_id(key.get()) == EVP_PKEY_EC);
  CHECK(EVP_PKEY_get_bits(key.get()) == 256);
  CHECK(X509_check_private_key(certificate, key.get()) == 1);
}

TEST_CASE("serial numbers and keys differ between certificates") {
  const TempFolder folder;
  make_ca(folder.path());
  const auto first = issue_node_certificate(folder.path(), node("a"));
  const auto second = issue_node_certificate(folder.path(), node("b"));
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->info.serial != second->info.serial);
  CHECK(first->info.serial.size() == 32);
  CHECK(content_of(first->key) != content_of(second->key));
}

TEST_CASE("another CA's certificates do not verify") {
  const TempFolder folder;
  make_ca(folder / "one");
  make_ca(folder / "two");  // the same cluster name and so the same subject
  const auto files = issue_node_certificate(folder / "one", node("alpha"));
  REQUIRE(files);
  const auto certificates = load(files->certificate);
  CHECK(verify(folder / "two/ca.pem", certificates.front().get(), X509_PURPOSE_SSL_SERVER) !=
        X509_V_OK);
}

TEST_CASE("expired and future certificates can be made and do not verify") {
  const TempFolder folder;
  make_ca(folder.path());
  const auto now = std::chrono::system_clock::now();
  auto past = node("past");
  past.validity.valid_from = now - std::chrono::hours{48};
  past.validity.valid_until = now - std::chrono::hours{24};
  auto future = node("future");
  future.validity.valid_from = now + std::chrono::hours{24};
  auto only_end = node("only-end");
  only_end.validity.valid_until = now - std::chrono::seconds{10};
  const auto check = [&](const NodeCertificateOptions& options, int wanted) {
    const auto files = issue_node_certificate(folder.path(), options);
    REQUIRE(files);
    const auto certificates = load(files->certificate);
    CHECK(verify(files->ca, certificates.front().get(), X509_PURPOSE_SSL_SERVER) == wanted);
  };
  check(past, X509_V_ERR_CERT_HAS_EXPIRED);
  check(future, X509_V_ERR_CERT_NOT_YET_VALID);
  check(only_end, X509_V_ERR_CERT_HAS_EXPIRED);

  auto backwards = node("backwards");
  backwards.validity.valid_from = now;
  backwards.validity.valid_until = now - std::chrono::seconds{1};
  CHECK(issue_node_certificate(folder.path(), backwards).error().code() == ec::invalid_argument);
}

TEST_CASE("a node certificate ends with its CA, and an expired CA issues nothing") {
  const TempFolder folder;
  const auto now = std::chrono::system_clock::now();
  CaOptions brief;
  brief.validity.days = 10;
  REQUIRE(create_cluster_ca(folder / "brief", brief));
  const auto files = issue_node_certificate(folder / "brief", node("alpha"));
  REQUIRE(files);
  CHECK(files->info.valid_until == describe_certificate_file(folder / "brief/ca.pem")->valid_until);

  CaOptions dead;
  dead.validity.valid_until = now - std::chrono::hours{1};
  REQUIRE(create_cluster_ca(folder / "dead", dead));
  const auto refused = issue_node_certificate(folder / "dead", node("alpha"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == ec::unauthorized);
}

TEST_CASE("existing keys and certificates are kept unless overwriting is asked for") {
  const TempFolder folder;
  const auto ca = make_ca(folder.path());
  const auto ca_key = content_of(ca.key);
  const auto again = create_cluster_ca(folder.path(), {});
  REQUIRE_FALSE(again);
  CHECK(again.error().code() == ec::conflict);
  CHECK(mentions(again.error(), "--force"));
  CHECK(content_of(ca.key) == ca_key);

  const auto files = issue_node_certificate(folder.path(), node("alpha"));
  REQUIRE(files);
  const auto node_key = content_of(files->key);
  CHECK(issue_node_certificate(folder.path(), node("alpha")).error().code() == ec::conflict);
  fs::remove(files->certificate);  // the key alone is reason enough
  CHECK(issue_node_certificate(folder.path(), node("alpha")).error().code() == ec::conflict);
  CHECK(content_of(files->key) == node_key);

  auto forced = node("alpha");
  forced.overwrite = true;
  REQUIRE(issue_node_certificate(folder.path(), forced));
  CHECK(content_of(files->key) != node_key);
  CHECK(mode_of(files->key) == 0600U);
  CaOptions forced_ca;
  forced_ca.overwrite = true;
  REQUIRE(create_cluster_ca(folder.path(), forced_ca));
  CHECK(content_of(ca.key) != ca_key);

  // No temporary file is left behind.
  for (const auto& entry : fs::directory_iterator{folder.path()}) {
    CHECK(entry.path().filename().string().front() != '.');
  }
}

TEST_CASE("a node's folder with another CA is not mixed up") {
  const TempFolder folder;
  make_ca(folder / "one");
  make_ca(folder / "two");
  auto options = node("alpha");
  options.out = folder / "node";
  REQUIRE(issue_node_certificate(folder / "one", options));
  options.name = "beta";
  const auto refused = issue_node_certificate(folder / "two", options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == ec::conflict);
  CHECK(mentions(refused.error(), "another CA"));
  CHECK_FALSE(fs::exists(folder / "node/beta.key"));
}

TEST_CASE("rotation: a file with two CAs accepts both, and the one that fits the key signs") {
  const TempFolder folder;
  make_ca(folder / "old");
  make_ca(folder / "new");
  const auto before = issue_node_certificate(folder / "old", node("alpha"));
  REQUIRE(before);
  const auto both = content_of(folder / "old/ca.pem") + content_of(folder / "new/ca.pem");
  REQUIRE(write_file_atomically(folder / "new/ca.pem", both, 0644, true));
  const auto after = issue_node_certificate(folder / "new", node("alpha"));
  REQUIRE(after);
  for (const auto* files : {&*before, &*after}) {
    const auto certificates = load(files->certificate);
    CHECK(verify(folder / "new/ca.pem", certificates.front().get(), X509_PURPOSE_SSL_CLIENT) ==
          X509_V_OK);
  }
  CHECK(content_of(after->ca) == both);
}

TEST_CASE("unacceptable input is refused and leaves nothing behind") {
  const TempFolder folder;
  for (const std::string& name :
       {std::string{}, std::string{"a/b"}, std::string{".."}, std::string{"-x"},
        std::string(49, 'a'), std::string{"a\nb"}, std::string("a\0b", 3)}) {
    CaOptions options;
    options.cluster = name;
    CHECK(create_cluster_ca(folder / "pki", options).error().code() == ec::invalid_argument);
    CHECK(issue_node_certificate(folder / "pki", node(name)).error().code() ==
          ec::invalid_argument);
  }
  CHECK_FALSE(fs::exists(folder / "pki"));
  CHECK(issue_node_certificate(folder / "pki", node("alpha")).error().code() == ec::not_found);

  make_ca(folder / "pki");
  CHECK(issue_node_certificate(folder / "pki", node("ca")).error().code() == ec::invalid_argument);
  for (const char* dns : {"", "a b", "10.0.0.1", "*", "a..b", "x,DNS:evil", "*.*.x"}) {
    auto options = node("alpha");
    options.dns = {dns};
    INFO(dns);
    CHECK(issue_node_certificate(folder / "pki", options).error().code() == ec::invalid_argument);
  }
  for (const char* ip : {"", "localhost", "10.0.0", "10.0.0.1/8", "::g"}) {
    auto options = node("alpha");
    options.ips = {ip};
    INFO(ip);
    CHECK(issue_node_certificate(folder / "pki", options).error().code() == ec::invalid_argument);
  }
  for (const int days : {0, -1, 36501}) {
    auto options = node("alpha");
    options.validity.days = days;
    CHECK(issue_node_certificate(folder / "pki", options).error().code() == ec::invalid_argument);
  }
  CHECK_FALSE(fs::exists(folder / "pki/alpha.key"));
}

TEST_CASE("broken CA files are told apart") {
  const TempFolder folder;
  make_ca(folder / "a");
  make_ca(folder / "b");
  fs::copy_file(folder / "b/ca.key", folder / "a/ca.key", fs::copy_options::overwrite_existing);
  const auto mismatch = issue_node_certificate(folder / "a", node("alpha"));
  REQUIRE_FALSE(mismatch);
  CHECK(mismatch.error().code() == ec::malformed);
  REQUIRE(write_file_atomically(folder / "b/ca.key", "nonsense", 0600, true));
  CHECK(issue_node_certificate(folder / "b", node("alpha")).error().code() == ec::malformed);
  fs::remove(folder / "b/ca.key");
  CHECK(issue_node_certificate(folder / "b", node("alpha")).error().code() == ec::not_found);
  CHECK(describe_certificate_file(folder / "nowhere").error().code() == ec::not_found);
  CHECK(describe_certificate_file(folder / "a/ca.key").error().code() == ec::malformed);
}

TEST_CASE("identity: the cluster's name decides for a peer that dials us") {
  const TempFolder folder;
  make_ca(folder.path());
  auto options = node("alpha");
  options.dns = {"alpha.example.org"};
  options.ips = {"10.1.2.3"};
  const auto files = issue_node_certificate(folder.path(), options);
  REQUIRE(files);
  const auto certificates = load(files->certificate);
  X509* certificate = certificates.front().get();
  CHECK(check_peer_identity(certificate, "", "prod"));
  CHECK(check_peer_identity(certificate, "unrelated.example.org", "prod"));

  // Another cluster's certificate is refused even where its host name fits.
  for (const char* host : {"", "alpha.example.org", "10.1.2.3"}) {
    for (const char* cluster : {"test", "pro", "prod2", "PROD", ""}) {
      const auto refused = check_peer_identity(certificate, host, cluster);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code() == ec::unauthorized);
      CHECK(mentions(refused.error(), "troupe://cluster/prod, DNS alpha.example.org, IP 10.1.2.3"));
      CHECK(mentions(refused.error(), "expected troupe://cluster/" + std::string{cluster}));
    }
  }
  CHECK(check_peer_identity(nullptr, "", "prod").error().code() == ec::unauthorized);
}

namespace {

/// A certificate as an organisation's own PKI would issue it: no cluster name.
CertificatePtr foreign_certificate(const std::string& names) {
  CertificatePtr certificate{X509_new()};
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("common.example.org"), -1, -1,
                             0);
  if (!names.empty()) {
    const ExtensionPtr extension{
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str())};
    REQUIRE(extension);
    X509_add_ext(certificate.get(), extension.get(), -1);
  }
  return certificate;
}

}  // namespace

TEST_CASE("identity: a dialled server may prove itself by host name or address") {
  const auto certificate =
      foreign_certificate("DNS:node1.example.org,DNS:*.pool.example.org,IP:10.0.0.5,IP:fd00::1");
  const auto accepts = [&](const char* host) {
    return check_peer_identity(certificate.get(), host, "prod").has_value();
  };
  CHECK(accepts("node1.example.org"));
  CHECK(accepts("NODE1.example.org"));
  CHECK(accepts("x.pool.example.org"));
  CHECK(accepts("10.0.0.5"));
  CHECK(accepts("fd00::1"));
  CHECK(accepts("[fd00:0::1]"));
  CHECK_FALSE(accepts(""));  // a peer that dials us needs the cluster's name
  CHECK_FALSE(accepts("node2.example.org"));
  CHECK_FALSE(accepts("a.b.pool.example.org"));
  CHECK_FALSE(accepts("10.0.0.6"));
  CHECK_FALSE(accepts("common.example.org"));  // the common name does not count
  CHECK_FALSE(accepts("[]"));
  const auto refused = check_peer_identity(certificate.get(), "10.0.0.6", "prod");
  CHECK(mentions(refused.error(), "dialled host \"10.0.0.6\""));

  const auto nameless = foreign_certificate("");
  CHECK(mentions(check_peer_identity(nameless.get(), "x", "prod").error(), "has no names"));
}

TEST_CASE("identity: what a certificate says is cleaned before it is told") {
  const auto certificate = foreign_certificate("");
  const GeneralNamesPtr names{GENERAL_NAMES_new()};
  const auto push = [&](const std::string& uri) {
    GENERAL_NAME* name = GENERAL_NAME_new();
    ASN1_IA5STRING* value = ASN1_IA5STRING_new();
    ASN1_STRING_set(value, uri.data(), static_cast<int>(uri.size()));
    GENERAL_NAME_set0_value(name, GEN_URI, value);
    sk_GENERAL_NAME_push(names.get(), name);
  };
  using namespace std::string_literals;
  push("troupe://cluster/prod\0x"s);
  push("troupe://cluster/bad\n\x1b[31m"s);
  push("troupe://cluster/" + std::string(100'000, 'z'));
  for (int i = 0; i < 1000; ++i) {
    push("troupe://cluster/c" + std::to_string(i));
  }
  X509_add1_ext_i2d(certificate.get(), NID_subject_alt_name, names.get(), 0, 0);
  const auto refused = check_peer_identity(certificate.get(), "", "prod");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text().size() < 4000);
  CHECK(refused.error().text().find('\n') == std::string::npos);
  CHECK(refused.error().text().find('\x1b') == std::string::npos);
  CHECK(refused.error().text().find('\0') == std::string::npos);
  CHECK(mentions(refused.error(), "more"));
  CHECK(check_peer_identity(certificate.get(), "", "c999"));
}

TEST_CASE("files are written whole or not at all") {
  const TempFolder folder;
  CHECK(write_file_atomically(folder / "none/x", "a", 0600, false).error().code() ==
        ec::system_error);
  REQUIRE(write_file_atomically(folder / "x", "first", 0640, false));
  CHECK(mode_of(folder / "x") == 0640U);
  CHECK(write_file_atomically(folder / "x", "second", 0600, false).error().code() == ec::conflict);
  CHECK(content_of(folder / "x") == "first");
  REQUIRE(write_file_atomically(folder / "x", "third", 0600, true));
  CHECK(*read_small_file(folder / "x", 5) == "third");
  CHECK(read_small_file(folder / "x", 4).error().code() == ec::limit_exceeded);
}
