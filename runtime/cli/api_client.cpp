#include "runtime/cli/api_client.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "net/endpoint.hpp"
#include "net/http_client.hpp"
#include "runtime/cli/status_table.hpp"

namespace troupe::cli {

namespace {

constexpr std::size_t max_told = 300;

/// An answer outside 2xx.
error refusal_of(const std::string& address, const net::HttpResult& result) {
  const auto json = nlohmann::json::parse(result.body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    const auto& reason = json["error"];
    if (reason.contains("text") && reason["text"].is_string()) {
      const auto code = reason.contains("code") && reason["code"].is_string()
                            ? ec_from_string(reason["code"].get_ref<const std::string&>())
                            : ec::system_error;
      return {code == ec::none ? ec::system_error : code,
              address + ": " + one_line(reason["text"].get_ref<const std::string&>(), max_told)};
    }
  }
  std::string text = address + " answered HTTP " + std::to_string(result.status);
  if (!result.body.empty()) {
    text += ": " + one_line(result.body.substr(0, result.body.find('\n')), max_told);
  }
  if (result.status == 404) {
    return {ec::not_found, text + "; is it a node of this version of troupe, with a view?"};
  }
  return {ec::system_error, text};
}

}  // namespace

void ApiArguments::add_to(CLI::App& command) {
  command.add_option("--cluster", address, "host:port of a node of the cluster (TROUPE_CLUSTER)")
      ->envname("TROUPE_CLUSTER")
      ->required();
  command.add_option("--tls", tls_folder, "Folder with ca.pem, NAME.pem and NAME.key (TROUPE_TLS)")
      ->envname("TROUPE_TLS");
  command.add_option("--name", name, "NAME of the certificate files in the folder of --tls")
      ->capture_default_str();
  command
      .add_option("--cluster-name", cluster,
                  "Name in the certificates of the cluster (TROUPE_CLUSTER_NAME)")
      ->envname("TROUPE_CLUSTER_NAME")
      ->capture_default_str();
  command.add_option("--tls-ca", tls.ca_file, "The cluster's CA (TROUPE_TLS_CA)")
      ->envname("TROUPE_TLS_CA");
  command.add_option("--tls-cert", tls.cert_file, "A certificate of the cluster (TROUPE_TLS_CERT)")
      ->envname("TROUPE_TLS_CERT");
  command.add_option("--tls-key", tls.key_file, "Its private key (TROUPE_TLS_KEY)")
      ->envname("TROUPE_TLS_KEY");
}

expected<ApiClient> ApiClient::make(const ApiArguments& arguments) {
  ApiClient client;
  if (const auto parsed = net::parse_address(arguments.address); !parsed) {
    return fail(parsed.error().code(), "--cluster: " + parsed.error().text());
  }
  client.address_ = arguments.address;
  NodeTls files = arguments.tls;
  if (!arguments.tls_folder.empty()) {
    const auto found = NodeTls::in_folder(arguments.tls_folder, arguments.name);
    files.ca_file = files.ca_file.empty() ? found.ca_file : files.ca_file;
    files.cert_file = files.cert_file.empty() ? found.cert_file : files.cert_file;
    files.key_file = files.key_file.empty() ? found.key_file : files.key_file;
  }
  if (files.enabled()) {
    auto tls =
        net::TlsContext::load({files.ca_file, files.cert_file, files.key_file, arguments.cluster});
    if (!tls) {
      return fail(tls.error());
    }
    client.tls_ = *tls;
  }
  return client;
}

expected<std::string> ApiClient::get(const std::string& target, net::Duration timeout) const {
  return call("GET", target, timeout);
}

expected<std::string> ApiClient::post(const std::string& target, net::Duration timeout) const {
  return call("POST", target, timeout);
}

expected<std::string> ApiClient::call(const std::string& method, const std::string& target,
                                      net::Duration timeout) const {
  net::HttpCall request;
  request.address = address_;
  request.method = method;
  request.target = target;
  request.tls = tls_;
  request.timeout = timeout;
  auto result = net::http_request(request);
  if (!result) {
    return fail(result.error());
  }
  if (result->status < 200 || result->status > 299) {
    return fail(refusal_of(address_, *result));
  }
  return std::move(result->body);
}

}  // namespace troupe::cli
