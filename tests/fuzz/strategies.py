"""What several fuzz tests draw from."""

import hypothesis.strategies as st

HEADER_BYTES = st.binary(max_size=60) | st.text(';=", \tabf-:.[]%0193\\', max_size=60).map(str.encode)
NUMBERS = st.sampled_from(["1", "1000", "0", "-1", "1e3", "1.0", "9" * 30, "9" * 5000, "NaN", " 5", "٣", "1_0", ""])
