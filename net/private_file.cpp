#include "net/private_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace troupe::net {

namespace {

error system_failure(const std::string& what, const std::filesystem::path& path, int number) {
  return {ec::system_error,
          "cannot " + what + " " + path.string() + ": " + std::generic_category().message(number)};
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return false;
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// 0 or an errno. Some file systems cannot rename without replacing; there a check must do.
int rename_file(const char* from, const char* to, bool overwrite) {
  if (overwrite) {
    return ::rename(from, to) == 0 ? 0 : errno;
  }
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) {
    return 0;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    return errno;
  }
  if (::access(to, F_OK) == 0) {
    return EEXIST;
  }
  return ::rename(from, to) == 0 ? 0 : errno;
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
}

}  // namespace

expected<void> write_file_atomically(const std::filesystem::path& path, std::string_view content,
                                     mode_t mode, bool overwrite) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path{"."};
  std::string temporary = (folder / ("." + path.filename().string() + ".XXXXXX")).string();
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);  // mode 0600 from the start
  if (fd < 0) {
    return fail(system_failure("create a file in", folder, errno));
  }
  int number = 0;
  if (!write_all(fd, content) || ::fchmod(fd, mode) != 0 || ::fsync(fd) != 0) {
    number = errno;
  }
  if (::close(fd) != 0 && number == 0) {
    number = errno;
  }
  if (number == 0) {
    number = rename_file(temporary.c_str(), path.c_str(), overwrite);
  }
  if (number != 0) {
    ::unlink(temporary.c_str());
    if (number == EEXIST) {
      return fail(ec::conflict, path.string() + " exists already");
    }
    return fail(system_failure("write", path, number));
  }
  sync_folder(folder);
  return {};
}

expected<std::string> read_small_file(const std::filesystem::path& path, std::size_t limit) {
  std::ifstream in{path, std::ios::binary};
  if (!in) {
    return fail(ec::not_found,
                "cannot read " + path.string() + ": " + std::generic_category().message(errno));
  }
  std::string content(limit + 1, '\0');
  in.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<std::size_t>(in.gcount()));
  if (content.size() > limit) {
    return fail(ec::limit_exceeded,
                path.string() + " has more than " + std::to_string(limit) + " bytes");
  }
  if (in.bad()) {
    return fail(system_failure("read", path, EIO));
  }
  return content;
}

}  // namespace troupe::net
