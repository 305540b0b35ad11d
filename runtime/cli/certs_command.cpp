#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "net/certs.hpp"
#include "runtime/cli/app.hpp"

namespace troupe::cli {

namespace {

std::string date_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[sizeof "2000-01-01"];
  return std::strftime(text, sizeof text, "%F", &parts) > 0 ? text : "?";
}

void add_init(CLI::App& certs) {
  struct Arguments {
    std::string dir;
    net::CaOptions options;
  };
  const auto arguments = std::make_shared<Arguments>();
  auto* command = certs.add_subcommand("init", "Create a certificate authority for a cluster");
  command->add_option("DIR", arguments->dir, "Folder for ca.pem and ca.key; made if absent")
      ->required();
  command
      ->add_option("--cluster", arguments->options.cluster,
                   "Name of the cluster, written into every certificate")
      ->capture_default_str();
  command->add_option("--days", arguments->options.validity.days, "Days until it expires")
      ->capture_default_str();
  command->add_flag("--force", arguments->options.overwrite,
                    "Replace an existing CA; the certificates it issued are then worth nothing");
  command->footer(
      "Keep ca.key away from the nodes: who has it can join the cluster. Give each node its own\n"
      "certificate with `troupe certs issue`.");
  command->callback([arguments] {
    const auto made = net::create_cluster_ca(arguments->dir, arguments->options);
    if (!made) {
      give_up(made.error());
    }
    std::cout << "created " << made->certificate.string() << " and " << made->key.string()
              << " for cluster \"" << arguments->options.cluster << "\"\n";
  });
}

void add_issue(CLI::App& certs) {
  struct Arguments {
    std::string dir;
    std::string out;
    net::NodeCertificateOptions options;
  };
  const auto arguments = std::make_shared<Arguments>();
  auto* command = certs.add_subcommand("issue", "Issue a certificate for one node");
  command->add_option("DIR", arguments->dir, "Folder of the CA, made by `troupe certs init`")
      ->required();
  command->add_option("--name", arguments->options.name, "Name of the node and of its files")
      ->required();
  command
      ->add_option("--dns", arguments->options.dns,
                   "Host name of the node (may be repeated; \"*.example.org\" works)")
      ->allow_extra_args(false);
  command->add_option("--ip", arguments->options.ips, "IPv4 or IPv6 address (may be repeated)")
      ->allow_extra_args(false);
  command->add_option("--days", arguments->options.validity.days, "Days until it expires")
      ->capture_default_str();
  command->add_option("--out", arguments->out,
                      "Folder for NAME.pem, NAME.key and a copy of ca.pem (default: DIR)");
  command->add_flag("--force", arguments->options.overwrite, "Replace existing files");
  command->footer(
      "Nodes of a cluster know each other by the cluster's name in the certificate, so --dns and\n"
      "--ip matter only to browsers and other foreign clients.");
  command->callback([arguments] {
    arguments->options.out = arguments->out;
    const auto made = net::issue_node_certificate(arguments->dir, arguments->options);
    if (!made) {
      give_up(made.error());
    }
    std::cout << "created " << made->certificate.string() << " and " << made->key.string()
              << ", valid until " << date_text(made->info.valid_until) << "; CA in "
              << made->ca.string() << '\n';
  });
}

}  // namespace

void add_certs_command(CLI::App& app) {
  auto* certs =
      app.add_subcommand("certs", "Make the certificates with which nodes trust each other");
  certs->require_subcommand(1);
  add_init(*certs);
  add_issue(*certs);
}

}  // namespace troupe::cli
