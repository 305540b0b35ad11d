// Why: inside actors an error is a `caf::error`, everywhere else a `troupe::error`; the two must
// convert without losing the code, and a handler must be able to write `err ==
// ec::node_unreachable`.
// Thread-safety: stateless.
#pragma once

#include <string>

#include <caf/atom.hpp>
#include <caf/error.hpp>

#include "net/error.hpp"

namespace caf {
class actor_system_config;
}

namespace troupe {

/// The category of Troupe's errors inside CAF.
inline constexpr caf::atom_value error_category = caf::atom("troupe");

/// A `caf::error` without text. CAF finds it when an `ec` is compared with or turned into an error;
/// comparisons look at category and code only.
caf::error make_error(ec code);

/// As `make_error`, with a sentence. `ec::none` gives "no error".
caf::error make_caf_error(ec code, std::string text);
caf::error make_caf_error(const error& err);

/// Any CAF error as ours: Troupe's own keep their code, CAF's own get the nearest one (timeout,
/// actor_down, …), and what is left is `ec::exception`. The text is kept or rendered.
error to_error(const caf::error& err);

/// The context of `err` as text: a single string as it is, anything else rendered, "" when empty.
std::string context_text(const caf::error& err);

/// "node_unreachable: link to … is down" for Troupe's errors, CAF's rendering for others.
std::string describe(const caf::error& err);

/// Makes `actor_system::render` and CAF's logs show Troupe's errors as `describe` does.
void add_error_category(caf::actor_system_config& config);

}  // namespace troupe
