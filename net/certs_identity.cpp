// What a certificate says, and whether that is enough to speak for a cluster.
#include <array>
#include <cstdio>

#include <arpa/inet.h>
#include <openssl/pem.h>

#include "net/certs.hpp"
#include "net/openssl_util.hpp"

namespace troupe::net {

namespace {

constexpr std::string_view uri_prefix = "troupe://cluster/";
constexpr std::size_t max_text = 200;
constexpr std::size_t max_names_told = 8;

/// The peer chose this text and it ends in logs: printable ASCII only, of bounded length.
std::string clean(std::string_view raw) {
  std::string text{raw.substr(0, max_text)};
  for (char& c : text) {
    if (c < ' ' || c > '~') {
      c = '?';
    }
  }
  return text;
}

std::string_view view_of(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

std::string name_text(const X509_NAME* name) {
  const BioPtr out{BIO_new(BIO_s_mem())};
  if (!out || X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253) < 0) {
    return "?";
  }
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return clean({data, static_cast<std::size_t>(size)});
}

std::string ip_text(const ASN1_STRING* raw) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int length = ASN1_STRING_length(raw);
  const int family = length == 4 ? AF_INET : AF_INET6;
  if ((length != 4 && length != 16) ||
      inet_ntop(family, ASN1_STRING_get0_data(raw), text.data(), text.size()) == nullptr) {
    return "?";
  }
  return text.data();
}

std::chrono::system_clock::time_point time_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) {
    return {};
  }
  return std::chrono::system_clock::from_time_t(timegm(&parts));
}

GeneralNamesPtr alternative_names(const X509* certificate) {
  return GeneralNamesPtr{static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr))};
}

/// Calls `fn` with each cluster named by a URI of the certificate, as raw bytes.
template <class Fn>
void for_each_cluster(const GENERAL_NAMES* names, Fn fn) {
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) {
      continue;
    }
    const std::string_view uri = view_of(name->d.uniformResourceIdentifier);
    if (uri.starts_with(uri_prefix)) {
      fn(uri.substr(uri_prefix.size()));
    }
  }
}

bool matches_host(X509* certificate, std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  host = host.substr(0, host.find('%'));  // a zone ("fe80::1%eth0") is local to this machine
  if (host.empty() || host.find('\0') != std::string_view::npos) {
    return false;
  }
  const std::string text{host};
  std::array<unsigned char, 16> address{};
  const bool is_ip = inet_pton(AF_INET, text.c_str(), address.data()) == 1 ||
                     inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
  if (is_ip) {
    return X509_check_ip_asc(certificate, text.c_str(), 0) == 1;
  }
  constexpr unsigned flags =
      X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS;
  return X509_check_host(certificate, text.data(), text.size(), flags, nullptr) == 1;
}

std::string told(const CertificateInfo& info) {
  std::vector<std::string> names;
  for (const auto& cluster : info.clusters) {
    names.push_back(cluster_uri(cluster));
  }
  for (const auto& dns : info.dns) {
    names.push_back("DNS " + dns);
  }
  for (const auto& ip : info.ips) {
    names.push_back("IP " + ip);
  }
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < max_names_told; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > max_names_told) {
    text += " and " + std::to_string(names.size() - max_names_told) + " more";
  }
  return text.empty() ? "no names" : text;
}

}  // namespace

std::string cluster_uri(std::string_view cluster) {
  return std::string{uri_prefix} + std::string{cluster};
}

CertificateInfo describe_certificate(X509* certificate) {
  CertificateInfo info;
  if (certificate == nullptr) {
    return info;
  }
  info.subject = name_text(X509_get_subject_name(certificate));
  info.issuer = name_text(X509_get_issuer_name(certificate));
  const BignumPtr serial{ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr)};
  if (char* digits = serial ? BN_bn2hex(serial.get()) : nullptr; digits != nullptr) {
    info.serial = digits;
    OPENSSL_free(digits);
  }
  info.valid_from = time_of(X509_get0_notBefore(certificate));
  info.valid_until = time_of(X509_get0_notAfter(certificate));
  const GeneralNamesPtr names = alternative_names(certificate);
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      info.dns.push_back(clean(view_of(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      info.ips.push_back(ip_text(name->d.iPAddress));
    }
  }
  for_each_cluster(names.get(),
                   [&](std::string_view cluster) { info.clusters.push_back(clean(cluster)); });
  ERR_clear_error();
  return info;
}

expected<CertificateInfo> describe_certificate_file(const std::filesystem::path& file) {
  const BioPtr in{BIO_new_file(file.c_str(), "r")};
  if (!in) {
    ERR_clear_error();
    return fail(ec::not_found, "cannot read the certificate " + file.string());
  }
  const CertificatePtr certificate{PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)};
  if (!certificate) {
    return fail(ec::malformed,
                file.string() + " holds no PEM certificate: " + take_openssl_error());
  }
  return describe_certificate(certificate.get());
}

expected<void> check_peer_identity(X509* certificate, std::string_view dialled_host,
                                   std::string_view cluster) {
  if (certificate == nullptr) {
    return fail(ec::unauthorized,
                "the peer sent no certificate; expected one with " + cluster_uri(clean(cluster)));
  }
  bool names_cluster = false;
  bool is_member = false;
  for_each_cluster(alternative_names(certificate).get(), [&](std::string_view found) {
    names_cluster = true;
    is_member = is_member || (!cluster.empty() && found == cluster);
  });
  const bool accepted = is_member || (!names_cluster && !dialled_host.empty() &&
                                      matches_host(certificate, dialled_host));
  ERR_clear_error();
  if (accepted) {
    return {};
  }
  const CertificateInfo info = describe_certificate(certificate);
  std::string expectation = cluster_uri(clean(cluster));
  if (!dialled_host.empty() && !names_cluster) {
    expectation += " or the dialled host \"" + clean(dialled_host) + "\"";
  }
  return fail(ec::unauthorized, "certificate \"" + info.subject + "\" has " + told(info) +
                                    "; expected " + expectation +
                                    ". Issue one with `troupe certs issue` from this cluster's CA");
}

}  // namespace troupe::net
