# args: OPERATION ARGUMENT...; paths are in hexadecimal. Says what there is to say on standard output, fields ended by NULs, and ends with 0;
# or "E" and a number of errno (10001: no regular file, 10002: the condition does not hold), and ends with 3.
use strict;
my $elf = ''; # of perl itself: Config, which knows the machine too, takes as long to load as all the rest here
if (open my $exe, '<', '/proc/self/exe') { read $exe, $elf, 20 }
my ($statx, $utimensat) = unpack('x18 v', $elf . "\0" x 20) == 62 ? (332, 280) : (291, 88);
my $temp;
umask 022;

sub fail { unlink $temp if defined $temp; syswrite STDOUT, "E" . ($_[0] + 0); exit 3 }
sub say_all { my $t = join '', @_; my $at = 0; while ($at < length $t) { my $n = syswrite STDOUT, $t, 65536, $at; exit 4 unless $n; $at += $n } }
sub place {
    my $p = pack 'H*', shift;
    fail(36) if length $p > 4000;
    return $p =~ m{^/} ? $p : "/workspace/$p";
}

# What is there: undef and $! when nothing is. The fields of struct statx.
sub look {
    my ($p, $follow) = @_;
    my ($b, $cwd, $flags, $mask) = ("\0" x 256, -100, $follow ? 0 : 0x100, 0x17ff);
    return undef if syscall($statx, $cwd, $p, $flags, $mask, $b) != 0;
    my %s;
    @s{qw(uid gid mode)} = unpack 'L L S', substr $b, 20, 10;
    @s{qw(ino size)} = unpack 'Q Q', substr $b, 32, 16;
    my ($cs, $cn) = unpack 'q L', substr $b, 96, 12;
    my ($ms, $mn) = unpack 'q L', substr $b, 112, 12;
    my ($major, $minor) = unpack 'L L', substr $b, 136, 8;
    @s{qw(ctime mtime dev)} = ($cs * 1000000000 + $cn, $ms * 1000000000 + $mn, $major << 20 | $minor);
    my $f = $s{mode} & 0170000;
    $s{type} = { 0100000 => 'f', 0040000 => 'd', 0120000 => 'l', 0010000 => 'p', 0140000 => 's', 0020000 => 'v', 0060000 => 'v' }->{$f} || 'o';
    $s{target} = $s{type} eq 'l' ? readlink $p : '';
    return \%s;
}
sub record {
    my ($name, $s) = @_;
    return join '', map { (defined $_ ? $_ : '') . "\0" } $name, @$s{qw(type size)}, $s->{mode} & 0777, @$s{qw(mtime ctime ino dev uid target)};
}

# KIND or KIND:dev,ino,mtime,ctime,size;...
sub holds {
    my ($cond, $s) = @_;
    my ($kind, $tags) = split /:/, $cond, 2;
    return 1 if $kind == 0;
    return defined $s if $kind == 1;
    return !defined $s if $kind == 2;
    my $same = defined $s && grep { $_ eq join ',', @$s{qw(dev ino mtime ctime size)} } split /;/, defined $tags ? $tags : '';
    return $kind == 3 ? $same : !$same;
}

# All of it is a directory then; false and $! when it cannot be.
sub make_path {
    my ($p, $mode) = @_;
    my $s = look($p, 1);
    if ($s) { return 1 if $s->{type} eq 'd'; $! = 20; return 0 }
    return 0 if $! != 2;
    my ($up, $name) = $p =~ m{^(.*?)/+([^/]+)/*$} or return 0;
    return 0 unless make_path($up eq '' ? '/' : $up, 0755);
    if (!mkdir $p, $mode) { my $e = $! + 0; my $again = look($p, 1); return 1 if $again && $again->{type} eq 'd'; $! = $e; return 0 }
    chmod $mode, $p;
    return 1;
}
sub nearest {
    my $p = shift;
    while (1) {
        my $s = look($p, 1);
        if ($s) { fail(20) if $s->{type} ne 'd'; return $p }
        fail($!) if $! != 2;
        $p =~ s{/+[^/]*/*$}{};
        $p = '/' if $p eq '';
    }
}

# Where a write ends up: (directory, name, what is there).
sub target {
    my ($p, $no_links) = @_;
    for (0 .. 40) {
        fail(21) if $p =~ m{/$} || $p =~ m{/\.\.?$};
        my ($dir, $name) = $p =~ m{^(.*?)/+([^/]+)$} or fail(22);
        $dir = '/' if $dir eq '';
        my $s = look("$dir/$name", 0);
        fail($!) if !$s && $! != 2;
        if (!$s || $s->{type} ne 'l' || $no_links) {
            fail(21) if $s && $s->{type} eq 'd';
            fail(10001) if $s && !$no_links && $s->{type} ne 'f';
            fail(13) if $s && $s->{type} eq 'f' && !-w "$dir/$name";
            return ($dir, $name, $s);
        }
        my $to = readlink "$dir/$name";
        fail($!) unless defined $to;
        $p = $to =~ m{^/} ? $to : "$dir/$to";
    }
    fail(40);
}

# Who looks and then acts in a directory does so alone among us.
sub alone {
    my $dir = shift;
    sysopen my $d, $dir, 0 or return undef;
    flock $d, 2;
    return $d;
}

sub remove_tree {
    my $p = shift;
    my $s = look($p, 0) or return;
    if ($s->{type} ne 'd') { unlink $p or $! == 2 or fail($!); return }
    if (!opendir my $d, $p) {
        chmod 0700, $p;
        opendir $d, $p or fail($!);
        closedir $d;
    }
    opendir my $d, $p or fail($!);
    chmod 0700, $p if !-w $p;
    remove_tree("$p/$_") for grep { $_ ne '.' && $_ ne '..' } readdir $d;
    closedir $d;
    rmdir $p or $! == 2 or fail($!);
}
sub set_time {
    my ($p, $ns, $flags) = @_;
    return if $ns eq '-';
    my $s = $ns >= 0 ? int($ns / 1000000000) : -int((999999999 - $ns) / 1000000000);
    my ($times, $cwd) = (pack('q q q q', 0, 0x3ffffffe, $s, $ns - $s * 1000000000), -100);
    syscall($utimensat, $cwd, $p, $times, $flags) == 0 or fail($!);
}
sub random_name { open my $f, '<:raw', '/dev/urandom' or fail($!); sysread $f, my $r, 12; return '.sandgate-' . unpack 'H*', $r }

my %do = (
    stat => sub { my $p = place(shift); my $s = look($p, 0) or fail($!); say_all(record('', $s)) },
    list => sub {
        my ($hex, $deep, $after, $max) = @_;
        my ($top, @names, $cut) = (place($hex));
        $after = pack 'H*', $after;
        my $walk;
        $walk = sub {
            my ($dir, $prefix, $depth) = @_;
            my $d;
            if (!opendir $d, $dir) { fail($!) if $prefix eq ''; return }
            for my $n (readdir $d) {
                next if $n eq '.' || $n eq '..';
                push @names, $prefix . $n;
                fail(12) if @names > 1000000;
                next unless $deep && !-l "$dir/$n" && -d _;
                if ($depth >= 60) { $cut = 1 } else { $walk->("$dir/$n", "$prefix$n/", $depth + 1) }
            }
        };
        $walk->($top, '', 0);
        @names = sort grep { $after eq '' || $_ gt $after } @names;
        my $more = @names > $max;
        $#names = $max - 1 if $more;
        say_all(($more ? 1 : 0) . "\0" . ($cut ? 1 : 0) . "\0");
        my $out = '';
        for my $n (@names) {
            my $s = look("$top/$n", 0) or next;
            $out .= record($n, $s);
            if (length $out > 60000) { say_all($out); $out = '' }
        }
        say_all($out);
    },
    mkdir => sub {
        my ($hex, $mode) = @_;
        my $p = place($hex);
        my $s = look($p, 1);
        fail($s->{type} eq 'd' ? 0 : 17) if $s && $s->{type} ne 'd';
        make_path($p, oct $mode) or fail($!);
        $s = look($p, 0) or fail($!);
        say_all(record('', $s));
    },
    remove => sub {
        my ($hex, $deep, $cond) = @_;
        my $p = place($hex);
        my ($up) = $p =~ m{^(.*?)/+[^/]+/*$};
        my $held = alone(defined $up && $up ne '' ? $up : '/');
        my $s = look($p, 0);
        fail($!) if !$s && $! != 2;
        fail(10002) unless holds($cond, $s);
        fail(2) unless $s;
        if ($s->{type} ne 'd') { unlink $p or fail($!) }
        elsif ($deep) { my $q = $p; $q =~ s{/+$}{}; remove_tree($q) }
        else { rmdir $p or fail($!) }
    },
    move => sub {
        my ($from, $to) = map { place($_) } @_;
        my $s = look($from, 0) or fail($!);
        my $t = look($to, 0);
        my ($up) = $to =~ m{^(.*?)/+[^/]+/*$};
        if (!$t) { make_path($up eq '' ? '/' : $up, 0755) or fail($!) if defined $up }
        rename $from, $to or fail($!);
    },
    begin => sub {
        my ($hex, $cond, $no_links) = @_;
        my ($dir, $name, $s) = target(place($hex), $no_links);
        fail(10002) unless holds($cond, $s);
        my $t = nearest($dir) . '/' . random_name();
        sysopen my $f, $t, 0301, 0600 or fail($!); # O_WRONLY | O_CREAT | O_EXCL
        say_all($t, "\0");
    },
    commit => sub {
        my ($t, $hex, $append, $mode, $cond, $mtime, $no_links) = @_;
        $temp = pack 'H*', $t;
        my ($dir, $name, $s) = target(place($hex), $no_links);
        make_path($dir, 0755) or fail($!);
        my $held = alone($dir);
        ($dir, $name, $s) = target("$dir/$name", $no_links);
        fail(10002) unless holds($cond, $s);
        my $p = "$dir/$name";
        if ($append && $s) {
            open my $in, '<:raw', $temp or fail($!);
            sysopen my $out, $p, 02001 or fail($!); # O_WRONLY | O_APPEND
            my $size = -s $out;
            while (1) {
                my $n = sysread $in, my $bytes, 65536;
                if (!defined $n) { my $e = $! + 0; truncate $out, $size; fail($e) }
                last unless $n;
                for (my $at = 0; $at < $n;) {
                    my $w = syswrite $out, $bytes, $n - $at, $at;
                    if (!$w) { my $e = $! + 0; truncate $out, $size; fail($e) }
                    $at += $w;
                }
            }
            chmod oct $mode, $p or fail($!) if $mode ne '-';
            set_time($p, $mtime, 0);
            unlink $temp;
        } else {
            chmod $mode ne '-' ? oct $mode : $s && $s->{type} eq 'f' ? $s->{mode} & 0777 : 0644, $temp or fail($!);
            set_time($temp, $mtime, 0);
            if ($cond =~ /^2/) { link $temp, $p or fail($! == 17 ? 10002 : $!); unlink $temp }
            else { rename $temp, $p or fail($!) }
        }
        undef $temp;
        my $now = look($p, 0) or fail($!);
        say_all(($s ? 0 : 1) . "\0", record('', $now));
    },
    drop => sub { unlink pack 'H*', shift },
    open => sub {
        my $p = place(shift);
        my $s = look($p, 1) or fail($!);
        fail(21) if $s->{type} eq 'd';
        fail(10001) if $s->{type} ne 'f';
        sysopen my $f, $p, 04000 or fail($!); # O_NONBLOCK
        my $real = readlink '/proc/self/fd/' . fileno $f;
        fail(10001) if !defined $real || $real =~ m{^/(proc|sys)/};
        say_all($real, "\0", record('', $s));
    },
);
my $op = shift;
$do{$op}->(@ARGV);
