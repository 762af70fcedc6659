#include "bench/harness/figure_table.h"

#include <nlohmann/json.hpp>

#include "bench/harness/figures.h"
#include "common/check.h"

namespace ems::bench {

using terminal::Align;

FigureTable::FigureTable()
    : json_(std::make_unique<nlohmann::ordered_json>(nlohmann::ordered_json::array())) {}
FigureTable::FigureTable(FigureTable&&) noexcept = default;
FigureTable::~FigureTable() = default;

void FigureTable::AddRow() {
  rows_.emplace_back();
  json_->push_back(nlohmann::ordered_json::object());
}

void FigureTable::Add(const std::string& title, Align align, const std::string& text) {
  if (title.empty()) return;
  if (rows_.size() == 1) columns_.push_back({title, align});
  const size_t column = rows_.back().size();
  EMS_CHECK(column < columns_.size() && columns_[column].title == title, "column {}", title);
  rows_.back().push_back(text);
}

void FigureTable::Label(const std::string& title, const std::string& key, const std::string& text) {
  Add(title, Align::kLeft, text);
  Field(key, text);
}

void FigureTable::Count(const std::string& title, const std::string& key, uint64_t count) {
  Figure(title, key, count, std::to_string(count));
}

void FigureTable::Figure(const std::string& title, const std::string& key, double value,
                         int decimals) {
  Figure(title, key, value, Fixed(value, decimals));
}

void FigureTable::Figure(const std::string& title, const std::string& key,
                         const nlohmann::ordered_json& value, const std::string& text) {
  Cell(title, text);
  Field(key, value);
}

void FigureTable::Cell(const std::string& title, const std::string& text) {
  Add(title, Align::kRight, text);
}

void FigureTable::Field(const std::string& key, const nlohmann::ordered_json& value) {
  if (!key.empty()) json_->back()[key] = value;
}

std::string FigureTable::Render() const {
  terminal::Table table(columns_);
  for (const std::vector<std::string>& row : rows_) table.AddRow(row);
  return table.Render();
}

}  // namespace ems::bench
