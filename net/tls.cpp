#include "net/tls.hpp"

#include <filesystem>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "net/certs.hpp"

namespace troupe::net {

namespace {

constexpr unsigned long alert_offset = SSL_AD_REASON_OFFSET;

std::string queue_text() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason != nullptr ? reason : "no reason given";
}

expected<void> require_file(const std::string& file, const char* what) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    return fail(ec::not_found, std::string{"TLS: no "} + what + " at '" + file +
                                   "'; `troupe certs init` and `troupe certs issue` make them");
  }
  return {};
}

/// A certificate that every peer will refuse is better refused at the start.
expected<void> check_own_certificate(SSL_CTX* context, const TlsConfig& config) {
  X509_STORE_CTX* store = X509_STORE_CTX_new();
  X509* own = SSL_CTX_get0_certificate(context);
  std::string problem;
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  if (store == nullptr ||
      X509_STORE_CTX_init(store, SSL_CTX_get_cert_store(context), own, chain) != 1) {
    problem = queue_text();
  } else if (X509_verify_cert(store) != 1) {
    problem = X509_verify_cert_error_string(X509_STORE_CTX_get_error(store));
  }
  X509_STORE_CTX_free(store);
  ERR_clear_error();
  if (!problem.empty()) {
    return fail(ec::invalid_argument, "TLS: our own certificate " + config.cert_file +
                                          " does not hold against " + config.ca_file + ": " +
                                          problem);
  }
  return {};
}

expected<SSL_CTX*> make_context(const SSL_METHOD* method, const TlsConfig& config) {
  ERR_clear_error();
  SSL_CTX* context = SSL_CTX_new(method);
  if (context == nullptr) {
    return fail(ec::system_error, "TLS: cannot make a context: " + queue_text());
  }
  const auto refuse = [&](const std::string& what) {
    const std::string text = "TLS: " + what + ": " + queue_text();
    SSL_CTX_free(context);
    return fail(ec::invalid_argument, text);
  };
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  if (SSL_CTX_use_certificate_chain_file(context, config.cert_file.c_str()) != 1) {
    return refuse("cannot read the certificate " + config.cert_file);
  }
  if (SSL_CTX_use_PrivateKey_file(context, config.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return refuse("cannot use the private key " + config.key_file);
  }
  if (SSL_CTX_check_private_key(context) != 1) {
    return refuse(config.key_file + " is not the key of " + config.cert_file);
  }
  if (SSL_CTX_load_verify_locations(context, config.ca_file.c_str(), nullptr) != 1) {
    return refuse("cannot read the CA " + config.ca_file);
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

}  // namespace

expected<std::shared_ptr<const TlsContext>> TlsContext::load(const TlsConfig& config) {
  for (const auto& [file, what] : {std::pair{&config.ca_file, "CA certificate"},
                                   std::pair{&config.cert_file, "node certificate"},
                                   std::pair{&config.key_file, "private key"}}) {
    if (const auto found = require_file(*file, what); !found) {
      return fail(found.error());
    }
  }
  const std::shared_ptr<TlsContext> made(new TlsContext());
  made->cluster_ = config.cluster;
  auto server = make_context(TLS_server_method(), config);
  if (!server) {
    return fail(server.error());
  }
  made->server_ = *server;
  auto client = make_context(TLS_client_method(), config);
  if (!client) {
    return fail(client.error());
  }
  made->client_ = *client;
  // Names the CA to clients that hold several certificates (browsers).
  SSL_CTX_set_client_CA_list(made->server_, SSL_load_client_CA_file(config.ca_file.c_str()));
  if (const auto fit = check_own_certificate(made->server_, config); !fit) {
    return fail(fit.error());
  }
  return std::shared_ptr<const TlsContext>(made);
}

TlsContext::~TlsContext() {
  SSL_CTX_free(server_);
  SSL_CTX_free(client_);
}

bool verify_peer(bool preverified, x509_store_ctx_st* store, std::string_view dialled_host,
                 std::string_view cluster, std::string& reason) {
  if (!preverified) {
    X509* certificate = X509_STORE_CTX_get_current_cert(store);
    reason = X509_verify_cert_error_string(X509_STORE_CTX_get_error(store));
    if (certificate != nullptr) {
      reason += " (\"" + describe_certificate(certificate).subject + "\")";
    }
    return false;
  }
  if (X509_STORE_CTX_get_error_depth(store) != 0) {
    return true;
  }
  const auto fit =
      check_peer_identity(X509_STORE_CTX_get_current_cert(store), dialled_host, cluster);
  if (!fit) {
    reason = fit.error().text();
    X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
    return false;
  }
  return true;
}

std::string describe_tls_error(unsigned long code) {
  if (code == 0) {
    return "no reason given";
  }
  const auto reason = static_cast<unsigned long>(ERR_GET_REASON(code));
  if (ERR_GET_LIB(code) == ERR_LIB_SSL && reason > alert_offset && reason < alert_offset + 256) {
    const auto alert = static_cast<int>(reason - alert_offset);
    const std::string words = SSL_alert_desc_string_long(alert);
    switch (alert) {
      case SSL_AD_BAD_CERTIFICATE:
      case SSL_AD_UNSUPPORTED_CERTIFICATE:
      case SSL_AD_CERTIFICATE_REVOKED:
      case SSL_AD_CERTIFICATE_EXPIRED:
      case SSL_AD_CERTIFICATE_UNKNOWN:
      case SSL_AD_UNKNOWN_CA:
      case SSL_AD_ACCESS_DENIED:
      case TLS13_AD_CERTIFICATE_REQUIRED:
      case SSL_AD_HANDSHAKE_FAILURE:
        return "the peer refused our certificate: " + words;
      case SSL_AD_PROTOCOL_VERSION:
        return "the peer refused the TLS version, or does not speak TLS on that port";
      default:
        return "the peer ended TLS: " + words;
    }
  }
  if (ERR_GET_LIB(code) == ERR_LIB_SSL) {
    switch (reason) {
      case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "the peer sent no certificate";
      case SSL_R_HTTP_REQUEST:
      case SSL_R_WRONG_VERSION_NUMBER:
      case SSL_R_PACKET_LENGTH_TOO_LONG:
        return "the other side does not speak TLS";
      case SSL_R_UNSUPPORTED_PROTOCOL:
        return "the peer does not offer TLS 1.3";
      case SSL_R_UNEXPECTED_EOF_WHILE_READING:
        return "the peer cut the connection during the handshake";
      default:
        break;
    }
  }
  const char* text = ERR_reason_error_string(code);
  return text != nullptr ? text : "OpenSSL error " + std::to_string(code);
}

std::string describe_handshake_failure(unsigned long code, const std::string& refusal) {
  if (!refusal.empty()) {
    return "we refused the peer's certificate: " + refusal;
  }
  return describe_tls_error(code);
}

}  // namespace troupe::net
