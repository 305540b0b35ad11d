#include "net/discovery.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <resolv.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include <spdlog/spdlog.h>

#include "net/discovery_lan.hpp"
#include "net/discovery_parse.hpp"

namespace troupe::net {

namespace {

constexpr std::size_t max_file = std::size_t{1} << 20U;
constexpr std::size_t max_dns_message = 65'535;

// -- what a source says (these block) -------------------------------------------------------------

expected<std::vector<std::string>> system_resolve(const HostPort& where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code =
      ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  std::vector<std::string> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    std::array<char, NI_MAXHOST> host{};
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, host.data(), host.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      addresses.push_back(join_address(host.data(), where.port));
    }
  }
  if (found != nullptr) {
    ::freeaddrinfo(found);
  }
  if (addresses.empty()) {
    return fail(ec::not_found, code != 0 ? ::gai_strerror(code) : "no address");
  }
  return addresses;
}

expected<std::vector<std::byte>> system_query_srv(const std::string& name) {
  struct __res_state resolver {};
  if (::res_ninit(&resolver) != 0) {
    return fail(ec::system_error, "the system's resolver does not start; see /etc/resolv.conf");
  }
  std::vector<unsigned char> answer(max_dns_message);
  const int size = ::res_nquery(&resolver, name.c_str(), 1 /* IN */, 33 /* SRV */, answer.data(),
                                static_cast<int>(answer.size()));
  const int reason = resolver.res_h_errno;
  ::res_nclose(&resolver);
  if (size < 0) {
    return fail(ec::not_found, ::hstrerror(reason));
  }
  std::vector<std::byte> message(std::min(static_cast<std::size_t>(size), answer.size()));
  std::memcpy(message.data(), answer.data(), message.size());
  return message;
}

void resolve_into(const DiscoveryConfig& config, const HostPort& where, AddressList& result) {
  if (is_numeric(where.host)) {
    result.addresses.push_back(join_address(where.host, where.port));
    return;
  }
  const auto found = config.resolve ? config.resolve(where) : system_resolve(where);
  if (found) {
    result.addresses.insert(result.addresses.end(), found->begin(), found->end());
  } else {
    result.problems.push_back("cannot look up '" + where.host + "': " + found.error().text());
  }
}

AddressList ask_srv(const DiscoveryConfig& config, const std::string& name) {
  AddressList result;
  const auto message = config.query_srv ? config.query_srv(name) : system_query_srv(name);
  const auto records = message ? parse_srv_answer(*message)
                               : expected<std::vector<SrvRecord>>{fail(message.error())};
  if (!records) {
    result.problems.push_back("cannot look up the service '" + name +
                              "': " + records.error().text());
    return result;
  }
  for (const SrvRecord& record : *records) {
    if (!record.target.empty() && record.port != 0) {
      resolve_into(config, {record.target, record.port}, result);
    }
  }
  if (result.addresses.empty() && result.problems.empty()) {
    result.problems.push_back("the service '" + name + "' is offered by nobody");
  }
  return result;
}

AddressList read_file(const DiscoveryConfig& config, const std::string& path) {
  AddressList result;
  std::ifstream file(path, std::ios::binary);
  std::string text(max_file, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (!file.eof()) {
    result.problems.push_back("cannot read the file '" + path + "' of addresses: " +
                              (text.size() == max_file ? "more than 1 MB" : std::strerror(errno)));
    return result;
  }
  const AddressList lines = parse_address_file(text);
  for (const std::string& problem : lines.problems) {
    result.problems.push_back("file '" + path + "', " + problem);
  }
  for (const std::string& address : lines.addresses) {
    resolve_into(config, *parse_address(address), result);
  }
  return result;
}

AddressList ask_source(const DiscoveryConfig& config, const std::string& text) {
  const auto source = parse_source(text);
  if (!source) {
    return {{}, {source.error().text()}};
  }
  switch (source->kind) {
    case SourceKind::srv:
      return ask_srv(config, source->name);
    case SourceKind::file:
      return read_file(config, source->name);
    case SourceKind::lan:
      return query_lan(source->group, config.cluster, config.lan_wait);
    case SourceKind::host:
      break;
  }
  AddressList result;
  resolve_into(config, source->where, result);
  return result;
}

AddressList ask_safely(const DiscoveryConfig& config, const std::string& text) {
  try {
    return ask_source(config, text);
  } catch (const std::exception& ex) {
    return {{}, {"'" + text + "': " + ex.what()}};
  }
}

/// Starts a thread that nobody waits for: it may hang in the system's resolver.
bool start_thread(std::function<void()> work) {
  try {
    std::thread([work = std::move(work)]() mutable {
      pthread_setname_np(pthread_self(), "troupe-find");
      work();
      work = nullptr;
    }).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

// -- searches -------------------------------------------------------------------------------------

/// One source being asked.
struct Lookup {
  bool done = false;
  AddressList result;
};

/// Outlives the discovery as long as a thread hangs.
struct Search {
  explicit Search(DiscoveryConfig settings) : config(std::move(settings)) {}

  void serve(const std::shared_ptr<Search>& self);
  AddressList ask_all(const std::shared_ptr<Search>& self);
  std::shared_ptr<Lookup> begin(const std::shared_ptr<Search>& self, const std::string& source);
  void deliver(const AddressList& found);

  const DiscoveryConfig config;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  bool serving = false;
  std::vector<Discovery::Handler> waiting;
  /// Get the answer of the search that is under way.
  std::vector<Discovery::Handler> served;
  std::thread::id delivering;
  /// Not ended yet: at most one thread per source, however often one is asked.
  std::map<std::string, std::shared_ptr<Lookup>> running;
};

/// Ends when nobody waits for an answer: between searches there is no thread.
void Search::serve(const std::shared_ptr<Search>& self) {
  for (;;) {
    {
      const std::lock_guard lock(mutex);
      if (waiting.empty() || stopped) {
        serving = false;
        return;
      }
      served.swap(waiting);
    }
    deliver(ask_all(self));
  }
}

std::shared_ptr<Lookup> Search::begin(const std::shared_ptr<Search>& self,
                                      const std::string& source) {
  auto& slot = running[source];
  if (slot) {
    return slot;
  }
  slot = std::make_shared<Lookup>();
  const auto lookup = slot;
  const bool started = start_thread([self, lookup, source] {
    AddressList result = ask_safely(self->config, source);
    const std::lock_guard lock(self->mutex);
    lookup->result = std::move(result);
    lookup->done = true;
    self->running.erase(source);
    self->changed.notify_all();
  });
  if (!started) {
    running.erase(source);
    lookup->done = true;
    lookup->result.problems.push_back("'" + source + "': no thread to look it up with");
  }
  return lookup;
}

AddressList Search::ask_all(const std::shared_ptr<Search>& self) {
  const auto deadline = std::chrono::steady_clock::now() + config.lookup_timeout;
  std::vector<std::shared_ptr<Lookup>> lookups;
  AddressList all;
  std::unique_lock lock(mutex);
  for (const std::string& source : config.sources) {
    lookups.push_back(begin(self, source));
  }
  for (std::size_t i = 0; i < lookups.size(); ++i) {
    const auto& lookup = lookups[i];
    changed.wait_until(lock, deadline, [&] { return lookup->done || stopped; });
    if (!lookup->done) {
      all.problems.push_back("'" + config.sources[i] + "' has not answered in time");
      continue;
    }
    const AddressList& part = lookup->result;
    all.addresses.insert(all.addresses.end(), part.addresses.begin(), part.addresses.end());
    all.problems.insert(all.problems.end(), part.problems.begin(), part.problems.end());
  }
  lock.unlock();
  all.addresses = without_repetitions(std::move(all.addresses));
  return all;
}

void Search::deliver(const AddressList& found) {
  std::unique_lock lock(mutex);
  while (!stopped && !served.empty()) {
    Discovery::Handler handler = std::move(served.front());
    served.erase(served.begin());
    delivering = std::this_thread::get_id();
    lock.unlock();
    try {
      handler(found.addresses, found.problems);
    } catch (const std::exception& ex) {
      spdlog::critical("a handler of a search threw: {} (this is a bug)", ex.what());
    }
    // What it holds must not outlive the discovery either.
    handler = nullptr;
    lock.lock();
    delivering = {};
    changed.notify_all();
  }
}

class SourceDiscovery final : public Discovery {
 public:
  explicit SourceDiscovery(DiscoveryConfig config)
      : search_(std::make_shared<Search>(std::move(config))) {}

  ~SourceDiscovery() override {
    std::vector<Handler> dropped;
    std::vector<Handler> unserved;
    std::unique_lock lock(search_->mutex);
    search_->stopped = true;
    dropped.swap(search_->waiting);
    unserved.swap(search_->served);
    search_->changed.notify_all();
    search_->changed.wait(lock, [this] {
      return search_->delivering == std::thread::id{} ||
             search_->delivering == std::this_thread::get_id();
    });
  }

  void find(Handler handler) override {
    {
      const std::lock_guard lock(search_->mutex);
      search_->waiting.push_back(std::move(handler));
      if (std::exchange(search_->serving, true)) {
        return;
      }
    }
    if (start_thread([search = search_] { search->serve(search); })) {
      return;
    }
    {
      const std::lock_guard lock(search_->mutex);
      search_->serving = false;
      search_->served.swap(search_->waiting);
    }
    search_->deliver({{}, {"no thread to look for members with"}});
  }

 private:
  std::shared_ptr<Search> search_;
};

class StaticDiscovery final : public Discovery {
 public:
  explicit StaticDiscovery(std::vector<std::string> addresses)
      : addresses_(without_repetitions(std::move(addresses))) {}

  void find(Handler handler) override { handler(addresses_, {}); }

 private:
  const std::vector<std::string> addresses_;
};

}  // namespace

std::shared_ptr<Discovery> make_discovery(DiscoveryConfig config) {
  return std::make_shared<SourceDiscovery>(std::move(config));
}

std::shared_ptr<Discovery> static_discovery(std::vector<std::string> addresses) {
  return std::make_shared<StaticDiscovery>(std::move(addresses));
}

}  // namespace troupe::net
