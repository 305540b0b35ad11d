// Why: keys and certificates must never be seen half written, nor a key by anyone else, nor may an
// existing one be lost by accident.
// Thread-safety: any thread; two writers of one file: the last rename wins, or the first if
// `overwrite` is false.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "net/error.hpp"

namespace troupe::net {

/// Writes `content` to a temporary file beside `path`, syncs it and renames it to `path`.
/// Errors: ec::conflict (exists and not `overwrite`), ec::system_error.
expected<void> write_file_atomically(const std::filesystem::path& path, std::string_view content,
                                     mode_t mode, bool overwrite);

/// The whole of a file of at most `limit` bytes. Errors: ec::not_found, ec::limit_exceeded.
expected<std::string> read_small_file(const std::filesystem::path& path, std::size_t limit);

}  // namespace troupe::net
