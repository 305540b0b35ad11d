// Why: what the three sources of configuration and the printer share.
// Thread-safety: pure functions. Internal to runtime/.
#pragma once

#include <string>
#include <string_view>

namespace troupe::config_internal {

/// Fit for one line of an error: cut, control characters replaced.
std::string in_quotes(std::string_view text);

/// Well-formed UTF-8; all that TOML can say.
bool valid_utf8(std::string_view text) noexcept;

/// A TOML basic string with its quotes.
std::string toml_string(std::string_view text);

/// A TOML key: bare where it can be.
std::string toml_key(std::string_view text);

/// The shortest text that reads back as the same number.
std::string number_text(double value);

}  // namespace troupe::config_internal
