#include "net/caf_error.hpp"

#include <caf/actor_system_config.hpp>
#include <caf/exit_reason.hpp>
#include <caf/make_message.hpp>
#include <caf/sec.hpp>

namespace troupe {

namespace {

std::string message_text(const caf::message& context) {
  if (context.empty()) {
    return {};
  }
  return context.size() == 1 && context.match_element<std::string>(0)
             ? context.get_as<std::string>(0)
             : to_string(context);
}

ec nearest_code(const caf::error& err) {
  if (err.category() == caf::atom("exit")) {
    switch (static_cast<caf::exit_reason>(err.code())) {
      case caf::exit_reason::remote_link_unreachable:
      case caf::exit_reason::unreachable:
        return ec::node_unreachable;
      case caf::exit_reason::unhandled_exception:
        return ec::exception;
      default:
        return ec::actor_down;
    }
  }
  if (err.category() == caf::atom("system")) {
    switch (static_cast<caf::sec>(err.code())) {
      case caf::sec::request_receiver_down:
        return ec::actor_down;
      case caf::sec::request_timeout:
        return ec::timeout;
      case caf::sec::unexpected_message:
      case caf::sec::unexpected_response:
        return ec::unknown_type;
      default:
        return ec::exception;
    }
  }
  return ec::exception;
}

}  // namespace

caf::error make_error(ec code) {
  return caf::error{static_cast<std::uint8_t>(code), error_category};
}

caf::error make_caf_error(ec code, std::string text) {
  if (text.empty()) {
    return make_error(code);
  }
  return caf::error{static_cast<std::uint8_t>(code), error_category,
                    caf::make_message(std::move(text))};
}

caf::error make_caf_error(const error& err) { return make_caf_error(err.code(), err.text()); }

error to_error(const caf::error& err) {
  if (!err) {
    return {};
  }
  if (err.category() == error_category) {
    return error{static_cast<ec>(err.code()), context_text(err)};
  }
  return error{nearest_code(err), to_string(err)};
}

std::string context_text(const caf::error& err) {
  return err ? message_text(err.context()) : std::string{};
}

std::string describe(const caf::error& err) {
  return err && err.category() == error_category ? to_string(to_error(err)) : to_string(err);
}

void add_error_category(caf::actor_system_config& config) {
  config.add_error_category(error_category,
                            [](std::uint8_t code, caf::atom_value, const caf::message& context) {
                              return to_string(error{static_cast<ec>(code), message_text(context)});
                            });
}

}  // namespace troupe
