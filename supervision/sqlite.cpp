#include "supervision/sqlite.hpp"

#include <array>
#include <cstring>

#include <sqlite3.h>

namespace troupe::sqlite {

namespace {

/// Nobody else has a lock on the file but a person with a tool; that must not hold the broker up for long.
constexpr int busy_ms = 1'000;

}  // namespace

void CloseDatabase::operator()(sqlite3* db) const noexcept { sqlite3_close_v2(db); }
void FinalizeStatement::operator()(sqlite3_stmt* statement) const noexcept {
  sqlite3_finalize(statement);
}

Statement::Statement(sqlite3* db, std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(db, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                         &statement, nullptr) != SQLITE_OK) {
    failed_ = true;
  }
  statement_.reset(statement);
}

Statement& Statement::number(std::uint64_t value) {
  return signed_number(static_cast<std::int64_t>(value));
}

Statement& Statement::signed_number(std::int64_t value) {
  failed_ |= sqlite3_bind_int64(statement_.get(), ++bound_, value) != SQLITE_OK;
  return *this;
}

Statement& Statement::text(std::string_view value) {
  // An empty view may have no address, which would bind NULL.
  const char* data = value.empty() ? "" : value.data();
  failed_ |= sqlite3_bind_text64(statement_.get(), ++bound_, data, value.size(), SQLITE_TRANSIENT,
                                 SQLITE_UTF8) != SQLITE_OK;
  return *this;
}

Statement& Statement::blob(std::span<const std::byte> value) {
  const void* data = value.empty() ? static_cast<const void*>("") : value.data();
  failed_ |= sqlite3_bind_blob64(statement_.get(), ++bound_, data, value.size(),
                                 SQLITE_TRANSIENT) != SQLITE_OK;
  return *this;
}

Statement& Statement::node(const NodeId& value) {
  // Big-endian, so that it reads like the id elsewhere.
  std::array<std::byte, 16> bytes{};
  for (std::size_t i = 0; i < 8; ++i) {
    const auto shift = static_cast<unsigned>(56 - 8 * i);
    bytes[i] = static_cast<std::byte>(value.high() >> shift);
    bytes[8 + i] = static_cast<std::byte>(value.low() >> shift);
  }
  return blob(bytes);
}

bool Statement::run() {
  const bool stepped = !failed_ && statement_ && sqlite3_step(statement_.get()) == SQLITE_DONE;
  reset();
  return stepped;
}

bool Statement::step() {
  column_ = 0;
  result_ = failed_ || !statement_ ? SQLITE_ERROR : sqlite3_step(statement_.get());
  return result_ == SQLITE_ROW;
}

bool Statement::done() {
  const bool complete = result_ == SQLITE_DONE;
  reset();
  return complete;
}

void Statement::reset() noexcept {
  if (statement_) {
    sqlite3_reset(statement_.get());
    sqlite3_clear_bindings(statement_.get());
    failed_ = false;
  }
  bound_ = 0;
}

std::uint64_t Statement::get_number() { return static_cast<std::uint64_t>(get_signed()); }

std::int64_t Statement::get_signed() { return sqlite3_column_int64(statement_.get(), column_++); }

std::string Statement::get_text() {
  const int column = column_++;
  const auto* data = sqlite3_column_text(statement_.get(), column);
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column));
  return data == nullptr ? std::string{} : std::string(reinterpret_cast<const char*>(data), size);
}

std::vector<std::byte> Statement::get_blob() {
  const int column = column_++;
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column));
  return data == nullptr ? std::vector<std::byte>{} : std::vector<std::byte>(data, data + size);
}

NodeId Statement::get_node() {
  const auto bytes = get_blob();
  std::array<std::uint64_t, 2> words{};
  for (std::size_t i = 0; i < bytes.size() && i < 16; ++i) {
    words[i / 8] = (words[i / 8] << 8U) | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return {words[0], words[1]};
}

expected<Database> Database::open(const std::string& path) {
  sqlite3* db = nullptr;
  const int result = sqlite3_open_v2(
      path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database{db, path};
  if (result != SQLITE_OK) {
    return fail(database.failure("open"));
  }
  sqlite3_extended_result_codes(db, 1);
  sqlite3_busy_timeout(db, busy_ms);
  return database;
}

bool Database::execute(const char* sql) {
  return sqlite3_exec(db_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK;
}

std::optional<std::string> Database::ask(std::string_view sql) {
  auto statement = prepare(sql);
  if (!statement.step()) {
    return std::nullopt;
  }
  return statement.get_text();
}

void Database::leave_log_alone(bool on) {
  sqlite3_db_config(db_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, on ? 1 : 0, nullptr);
}

bool Database::in_transaction() const { return sqlite3_get_autocommit(db_.get()) == 0; }

error Database::failure(const std::string& what) const {
  const int code = db_ ? sqlite3_errcode(db_.get()) : SQLITE_NOMEM;
  const bool damaged = (code & 0xFF) == SQLITE_NOTADB || (code & 0xFF) == SQLITE_CORRUPT;
  const bool from_system = (code & 0xFF) == SQLITE_IOERR || (code & 0xFF) == SQLITE_CANTOPEN ||
                           (code & 0xFF) == SQLITE_FULL;
  std::string text =
      "cannot " + what + " " + path_ + ": " + (db_ ? sqlite3_errmsg(db_.get()) : "out of memory");
  if (const int number = db_ ? sqlite3_system_errno(db_.get()) : 0; number != 0 && from_system) {
    text += std::string{" ("} + std::strerror(number) + ")";
  }
  return {damaged ? ec::malformed : ec::system_error, std::move(text)};
}

}  // namespace troupe::sqlite
