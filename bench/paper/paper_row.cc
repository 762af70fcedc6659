#include "bench/paper/paper_row.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <utility>

#include "tools/terminal.h"

namespace ems::bench {
namespace {

std::string Number(double value) {
  const double size = std::fabs(value);
  if (size >= 1000) return fmt::format("{:.0f}", value);
  if (size >= 100) return fmt::format("{:.1f}", value);
  return fmt::format("{:.3g}", value);
}

std::string Verdict(const PaperRow& row) {
  const std::string off = fmt::format("{:.1f} % off", row.off_percent());
  if (row.within_tolerance()) return fmt::format("within {:g} %", row.tolerance_percent);
  if (row.known_percent > 0)
    return fmt::format("{}, known, not within {:g} %", off, row.tolerance_percent);
  return fmt::format("{}, NOT within {:g} %", off, row.tolerance_percent);
}

}  // namespace

double PaperRow::ratio() const {
  if (paper == 0) return ours == 0 ? 1 : std::numeric_limits<double>::infinity();
  return ours / paper;
}

double PaperRow::off_percent() const { return 100 * std::fabs(ratio() - 1); }

PaperRow& PaperSection::Add(std::string id, std::string name, std::string unit, double paper,
                            double ours, RowKind kind, double tolerance_percent) {
  return rows.emplace_back(PaperRow{.id = std::move(id),
                                    .name = std::move(name),
                                    .unit = std::move(unit),
                                    .paper = paper,
                                    .ours = ours,
                                    .kind = kind,
                                    .tolerance_percent = tolerance_percent});
}

const char* RowKindName(RowKind kind) {
  if (kind == RowKind::kInput) return "input";
  return kind == RowKind::kFit ? "fit" : "prediction";
}

std::string RenderSection(const PaperSection& section) {
  using terminal::Align;
  terminal::Table table({{"figure", Align::kLeft},
                         {"paper"},
                         {"ours"},
                         {"", Align::kLeft},
                         {"ratio"},
                         {"kind", Align::kLeft},
                         {"", Align::kLeft}});
  for (const PaperRow& row : section.rows)
    table.AddRow({row.name, Number(row.paper), Number(row.ours), row.unit,
                  fmt::format("{:.3f}", row.ratio()), RowKindName(row.kind), Verdict(row)});
  std::string text = fmt::format("{}\n", section.title);
  if (!section.note.empty()) text += fmt::format("  {}\n", section.note);
  text += table.Render();
  for (const PaperRow& row : section.rows)
    if (!row.why.empty()) text += fmt::format("  {}: {}\n", row.name, row.why);
  return text + "\n";
}

}  // namespace ems::bench
