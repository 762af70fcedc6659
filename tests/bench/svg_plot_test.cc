// What must hold: the text is one well-formed SVG document with every label and series, whatever
// figures it is given.
#include "bench/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Plot TwoPanels() {
  const PlotSeries ours{.name = "ours & theirs",
                        .color = "#112233",
                        .dashed = false,
                        .bold = true,
                        .values = {1.5, 3.2, 4.7}};
  const PlotSeries other{.name = "other",
                         .color = "#445566",
                         .dashed = true,
                         .bold = false,
                         .values = {0.5, std::nullopt, 2.0}};
  return {.title = "a < b",
          .subtitle = "the \"subtitle\"",
          .panels = {{.title = "speed",
                      .x_label = "size",
                      .y_label = "GB/s",
                      .places = {"4 KiB", "1 MiB", "16 MiB"},
                      .log_y = false,
                      .series = {ours, other}},
                     {.title = "latency",
                      .x_label = "size",
                      .y_label = "us",
                      .places = {"4 KiB", "1 MiB", "16 MiB"},
                      .log_y = true,
                      .series = {ours}}}};
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Tags open and close in order, quotes are even: enough of a parser for what is written here.
void ExpectWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    EXPECT_EQ(Count(tag, "\"") % 2, 0U) << tag;
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgPlotTest, DocumentHasEveryTextEscaped) {
  const std::string svg = RenderSvg(TwoPanels());
  ExpectWellFormed(svg);
  for (const char* text : {"a &lt; b", "the &quot;subtitle&quot;", "ours &amp; theirs", ">other<",
                           ">GB/s<", ">size<", ">16 MiB<", "rotate(-90"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
}

TEST(SvgPlotTest, SeriesOfOneNameAreInTheLegendOnceAndGapsBreakTheLine) {
  const std::string svg = RenderSvg(TwoPanels());
  EXPECT_EQ(Count(svg, ">ours &amp; theirs</text>"), 1U);
  EXPECT_EQ(Count(svg, "<path"), 3U);
  EXPECT_EQ(Count(svg, "<circle"), 3U + 2 + 3);
  const size_t other = svg.find("stroke=\"#445566\"", svg.find("<path"));
  const std::string path = svg.substr(svg.rfind("<path", other), 60);
  EXPECT_EQ(Count(path, "M"), 2U) << path;
}

TEST(SvgPlotTest, LinearAxisStartsAtZeroAndLogarithmicOneHasDecades) {
  const std::string svg = RenderSvg(TwoPanels());
  for (const char* tick : {">0<", ">1<", ">5<", ">10<"}) EXPECT_THAT(svg, HasSubstr(tick));
  Plot large = TwoPanels();
  large.panels[1].series[0].values = {0.4, 90.0, 4200.0};
  EXPECT_THAT(RenderSvg(large), HasSubstr(">10,000<"));
  EXPECT_THAT(RenderSvg(large), HasSubstr(">0.1<"));
}

TEST(SvgPlotTest, FiguresThatAreNoneLeaveAPanelThatSaysSo) {
  Plot plot = TwoPanels();
  plot.panels[0].series[0].values = {std::nan(""), -1.0, std::nullopt};
  plot.panels[0].series.pop_back();
  plot.panels[1].series[0].values = {0.0, INFINITY, 1.0};  // one figure on a logarithmic axis
  const std::string svg = RenderSvg(plot);
  ExpectWellFormed(svg);
  EXPECT_THAT(svg, HasSubstr("no figures"));
  EXPECT_EQ(Count(svg, "<circle"), 1U);
  ExpectWellFormed(RenderSvg({}));
}

}  // namespace
}  // namespace ems::bench
