// Why: SQLite's C interface with owners and one error type; not for other code than the store.
// Thread-safety: one thread at a time, as the connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/error.hpp"
#include "net/node_id.hpp"

struct sqlite3;
struct sqlite3_stmt;

namespace troupe::sqlite {

struct CloseDatabase {
  void operator()(sqlite3* db) const noexcept;
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const noexcept;
};

/// A prepared statement. Bind left to right, then `run` or `step`; errors stick until `run` or `done` reports
/// them.
class Statement {
 public:
  Statement() = default;
  Statement(sqlite3* db, std::string_view sql);

  Statement& number(std::uint64_t value);
  Statement& signed_number(std::int64_t value);
  Statement& text(std::string_view value);
  Statement& blob(std::span<const std::byte> value);
  Statement& node(const NodeId& value);

  /// Executes it once and makes it ready for the next time. False: see the connection's error.
  bool run();

  /// True while there is a row.
  bool step();
  /// After the last `step`: whether all rows have been read; makes it ready for the next time.
  bool done();

  // Columns of the present row, left to right from `first`.
  void first() noexcept { column_ = 0; }
  std::uint64_t get_number();
  std::int64_t get_signed();
  std::string get_text();
  std::vector<std::byte> get_blob();
  NodeId get_node();

 private:
  void reset() noexcept;

  std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement_;
  int bound_ = 0;
  int column_ = 0;
  int result_ = 0;
  bool failed_ = false;
};

class Database {
 public:
  /// Opens or makes the file; nothing is read or written yet.
  static expected<Database> open(const std::string& path);

  Statement prepare(std::string_view sql) { return {db_.get(), sql}; }
  /// Statements without parameters and rows.
  bool execute(const char* sql);
  /// The first column of the first row.
  std::optional<std::string> ask(std::string_view sql);

  /// Closing must not write what others left in the log.
  void leave_log_alone(bool on);

  bool in_transaction() const;

  /// The last error, as "cannot <what> <path>: <SQLite's words>".
  error failure(const std::string& what) const;

 private:
  Database(sqlite3* db, std::string path) : db_(db), path_(std::move(path)) {}

  std::unique_ptr<sqlite3, CloseDatabase> db_;
  std::string path_;
};

}  // namespace troupe::sqlite
