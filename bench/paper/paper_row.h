#pragma once
// One figure of the papers beside ours: what `ems-bench paper` is a list of.
#include <string>
#include <vector>

namespace ems::bench {

enum class RowKind {
  kInput,       // a figure that the model is made of, or plain arithmetic on such figures
  kFit,         // a constant was fitted to this row (docs/COST_MODEL.md)
  kPrediction,  // nothing was fitted to it
};

struct PaperRow {
  std::string id;      // of its gate and in JSON: "fig23_ub_vs_vpc"
  std::string name;    // for people
  std::string unit{};  // may be empty
  double paper = 0;
  double ours = 0;
  RowKind kind = RowKind::kPrediction;
  double tolerance_percent = 10;
  // Above zero: the row is known to be this far off, at most, and `why` says why; the gate then
  // watches that it gets no worse.
  double known_percent = 0;
  std::string why{};

  double ratio() const;        // ours / paper; 1 when both are 0
  double off_percent() const;  // |ratio - 1| · 100
  bool within_tolerance() const { return off_percent() <= tolerance_percent; }
};

struct PaperSection {
  std::string title;
  std::string note{};  // may be empty
  std::vector<PaperRow> rows{};

  // Appends a row. The reference lives until the next one.
  PaperRow& Add(std::string id, std::string name, std::string unit, double paper, double ours,
                RowKind kind = RowKind::kPrediction, double tolerance_percent = 10);
};

const char* RowKindName(RowKind kind);  // "input", "fit", "prediction"

// A section as a table: figure, paper, ours, ratio, kind, and what is off.
std::string RenderSection(const PaperSection& section);

}  // namespace ems::bench
