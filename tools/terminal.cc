#include "tools/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "common/bytes.h"

namespace ems::terminal {
namespace {

constexpr Duration kRedraw = std::chrono::milliseconds(100);
constexpr size_t kBarPlaces = 30;
constexpr std::string_view kGap = "  ";

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

std::string Amount(uint64_t amount, std::string_view unit) {
  return unit == "bytes" ? FormatBytes(amount) : fmt::format("{} {}", amount, unit);
}

std::string Speed(double per_second, std::string_view unit) {
  return unit == "bytes" ? fmt::format("{:.2f} GB/s", per_second / 1e9)
                         : fmt::format("{:.0f} {}/s", per_second, unit);
}

void AppendCell(std::string* line, std::string_view cell, size_t width, Align align) {
  const size_t padding = width - std::min(width, Width(cell));
  if (align == Align::kRight) line->append(padding, ' ');
  line->append(cell);
  if (align == Align::kLeft) line->append(padding, ' ');
}

}  // namespace

size_t Width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    widths.push_back(Width(column.title));
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  const auto append_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += kGap;
      AppendCell(&line, cells[i], widths[i], columns_[i].align);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append_line(titles);
  for (const auto& row : rows_) append_line(row);
  return text;
}

std::string BarText(std::string_view label, uint64_t done, uint64_t total, std::string_view unit,
                    Duration elapsed) {
  const double seconds = std::max(Seconds(elapsed), 1e-9);
  const double per_second = static_cast<double>(done) / seconds;
  std::string text(label);
  if (!text.empty()) text += ' ';
  if (total == 0 && done == 0) return text + fmt::format("{:.0f} s", seconds);
  if (total == 0) {
    return text + fmt::format("{}  {}", Amount(done, unit), Speed(per_second, unit));
  }
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto filled = static_cast<size_t>(share * static_cast<double>(kBarPlaces));
  text += fmt::format("[{}{}] {:3.0f} %  {} of {}  {}", std::string(filled, '#'),
                      std::string(kBarPlaces - filled, '-'), share * 100, Amount(done, unit),
                      Amount(total, unit), Speed(per_second, unit));
  if (done > 0 && done < total) {
    text += fmt::format("  {:.0f} s left", static_cast<double>(total - done) / per_second);
  }
  return text;
}

ProgressBar::ProgressBar(ProgressOptions options)
    : options_(std::move(options)),
      out_(options_.out != nullptr ? options_.out
                                   : (isatty(STDERR_FILENO) == 1 ? stderr : nullptr)),
      start_(options_.clock->Now()),
      next_draw_(start_ + options_.delay) {}

void ProgressBar::Update(uint64_t done) {
  if (out_ == nullptr) return;
  const TimePoint now = options_.clock->Now();
  if (now < next_draw_) return;
  next_draw_ = now + kRedraw;
  std::string text = BarText(options_.label, done, options_.total, options_.unit, now - start_);
  const size_t width = Width(text);
  if (width < drawn_width_) text.append(drawn_width_ - width, ' ');
  drawn_width_ = width;
  std::fprintf(out_, "\r%s", text.c_str());
  std::fflush(out_);
}

void ProgressBar::Clear() {
  if (out_ == nullptr || drawn_width_ == 0) return;
  std::fprintf(out_, "\r%s\r", std::string(drawn_width_, ' ').c_str());
  std::fflush(out_);
  drawn_width_ = 0;
}

}  // namespace ems::terminal
