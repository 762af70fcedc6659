#pragma once
// Rows of figures that people read as a table and machines as JSON, each figure named in one place.
//
//   FigureTable table;
//   for (…) {
//     table.AddRow();
//     table.Label("message", "", FormatBytes(bytes));
//     table.Figure("p50 us", "p50_us", p50, 2);
//   }
//   report->Print(table.Render());
//   report->json()["ring"] = table.json();
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/terminal.h"

namespace ems::bench {

// Invariant: a row has the titles of the first one, in their order, or fewer. Threading: one
// thread.
class FigureTable final {
 public:
  FigureTable();
  FigureTable(FigureTable&&) noexcept;
  ~FigureTable();

  void AddRow();
  // A cell of the current row, and a field of its object. Title "": the table has no such column;
  // key "": the document has no such field. A Label is text at the left of its column.
  void Label(const std::string& title, const std::string& key, const std::string& text);
  void Count(const std::string& title, const std::string& key, uint64_t count);
  // `decimals` in the table; "-" for what is not a number.
  void Figure(const std::string& title, const std::string& key, double value, int decimals);
  // What looks otherwise in the table than in the document.
  void Figure(const std::string& title, const std::string& key, const nlohmann::ordered_json& value,
              const std::string& text);
  void Cell(const std::string& title, const std::string& text);
  void Field(const std::string& key, const nlohmann::ordered_json& value);

  bool empty() const { return rows_.empty(); }
  std::string Render() const;
  // An array of the rows' objects.
  const nlohmann::ordered_json& json() const { return *json_; }

 private:
  void Add(const std::string& title, terminal::Align align, const std::string& text);

  std::vector<terminal::Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::unique_ptr<nlohmann::ordered_json> json_;
};

}  // namespace ems::bench
